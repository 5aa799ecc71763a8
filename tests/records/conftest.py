"""Files of records, and a tokenizer."""

from tests.helpers.record_files import bpe as bpe
from tests.helpers.record_files import json_lines as json_lines
from tests.helpers.record_files import with_template as with_template
