"""The words that a container is started with, which names are those of secrets, and what of a text is masked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from seatrial.command import (
    RUNTIMES,
    Command,
    guarded,
    in_container,
    is_secret,
    masked,
    masked_words,
    revealed,
    shown,
)  # fmt: skip
from seatrial.dialects import DIALECTS
from seatrial.dialects.explain import table
from seatrial.dialects.fields import FIELDS
from seatrial.spec import Container

PLAIN = Container(image="image:1")


def words(container: Container, runtime: str) -> tuple[str, ...]:
    made = in_container(Command(argv=("true",)), container, runtime=runtime, name="name", run="run", mounts=("/run",))
    return made.argv


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"privileged": True}, [("--privileged", "--ulimit")]),
        ({"pull": "never"}, [("--pull", "never")]),
        ({"pull": "always"}, [("--pull", "always")]),
        ({"cap_add": ("A", "B")}, [("--cap-add", "A"), ("--cap-add", "B")]),
        ({"security_opt": ("seccomp=unconfined",)}, [("--security-opt", "seccomp=unconfined")]),
        ({"group_add": ("video", "render")}, [("--group-add", "video"), ("--group-add", "render")]),
    ],
)
def test_a_container_is_given_what_it_asks_for_and_only_then(
    asked: dict[str, Any], given: list[tuple[str, str]], runtime: str
) -> None:
    usual, made = words(PLAIN, runtime), words(Container(image="image:1", **asked), runtime)
    assert set(given) <= set(pairwise(made))
    assert not {flag for flag, _ in given} & set(usual)
    assert made[-2:] == ("image:1", "true")


# --- names of secrets -------------------------------------------------------------------------------------------------

SECRETS = """
    HF_TOKEN HUGGING_FACE_HUB_TOKEN HUGGINGFACE_TOKEN HUGGINGFACEHUB_API_TOKEN HFTOKEN hf_token hf-token hfToken
    HF_TOKEN_2 HF_TOKEN2 TOKEN token hf_access_token ACCESS_TOKEN WANDB_API_KEY WANDB_APIKEY WANDB_KEY wandb_api_key
    wandbApiKey AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN AWS_SECURITY_TOKEN AWSSecretKey
    AWS_WEB_IDENTITY_TOKEN DB_PASSWD DB_PASSWORD DB_PASS DB_PWD PGPASSWORD MYSQL_PWD MYSQL_ROOT_PASSWORD
    POSTGRES_PASSWORD REDIS_PASSWORD REDISCLI_AUTH MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN NGC_CLI_API_KEY
    NGC_API_KEY NGC_KEY NVIDIA_API_KEY GITHUB_PAT GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN CI_JOB_TOKEN GITLAB_PAT
    AZURE_DEVOPS_EXT_PAT COMET_API_KEY NEPTUNE_API_TOKEN CLEARML_API_SECRET_KEY CLEARML_API_ACCESS_KEY
    SLACK_WEBHOOK_URL SLACK_TOKEN SLACK_BOT_TOKEN DISCORD_WEBHOOK TEAMS_WEBHOOK_URL AZURE_STORAGE_CONNECTION_STRING
    AZURE_STORAGE_KEY AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_SAS_TOKEN AZURE_CLIENT_SECRET AZURE_OPENAI_API_KEY
    GOOGLE_APPLICATION_CREDENTIALS GCP_CREDENTIALS GOOGLE_API_KEY AWS_CREDENTIALS DOCKER_CREDENTIALS GIT_CREDENTIALS
    CREDENTIALS S3_CREDS OPENAI_API_KEY OPENAI_KEY ANTHROPIC_API_KEY COHERE_API_KEY GROQ_API_KEY MISTRAL_API_KEY
    TOGETHER_API_KEY REPLICATE_API_TOKEN DATABRICKS_TOKEN SNOWFLAKE_PASSWORD MINIO_SECRET_KEY MINIO_ROOT_PASSWORD
    S3_SECRET_KEY S3_ACCESS_KEY DOCKER_PASSWORD DOCKER_AUTH_CONFIG REGISTRY_PASSWORD NPM_TOKEN PYPI_TOKEN
    TWINE_PASSWORD SSH_PASSWORD SSHPASS SSH_PRIVATE_KEY SSH_KEY SSH_KEY_PASSPHRASE GPG_PASSPHRASE PRIVATE_KEY
    SIGNING_KEY ENCRYPTION_KEY CLIENT_SECRET APP_SECRET DJANGO_SECRET_KEY SECRET SECRETS JWT SLURM_JWT SENTRY_DSN
    DATABASE_URL REDIS_URL MONGODB_URI CELERY_BROKER_URL password passwd Password dbPassword smtp_password SMTP_PASS
    EMAIL_PASSWORD VAULT_TOKEN CONSUL_HTTP_TOKEN KUBE_TOKEN BEARER_TOKEN HTTP_AUTHORIZATION AUTHORIZATION
    SESSION_COOKIE API_KEY APIKEY api-key apiKey APIToken api_keys OAUTH_TOKEN REFRESH_TOKEN CODECOV_TOKEN
    DD_API_KEY DATADOG_APP_KEY GRAFANA_API_KEY TELEGRAM_BOT_TOKEN LABEL_STUDIO_API_KEY KAGGLE_KEY LANGCHAIN_API_KEY
    PINECONE_API_KEY ROBOFLOW_API_KEY SWANLAB_API_KEY MODELSCOPE_API_TOKEN DAGSHUB_USER_TOKEN AIM_ACCESS_TOKEN
    LIGHTNING_API_KEY PYANNOTE_AUTH_TOKEN USE_AUTH_TOKEN config.container_config.env_dict.HF_TOKEN HF_TOKEN.value
    container.env.DB_PASSWD
"""

NO_SECRETS = """
    TOKENIZER_PATH TOKENIZER_MODEL TOKENIZER_TYPE TOKENIZER tokenizer tokenizer_path TOKENIZERS_PARALLELISM
    tokenizerModel DETOKENIZE NUM_TOKENS MAX_TOKENS MAX_TOKENS_PER_BATCH TRAIN_TOKENS TOKENS_PER_STEP
    tokens_per_second_per_device TOKENS_PER_GPU tokens_per_sec_per_gpu GLOBAL_BATCH_TOKENS WARMUP_TOKENS
    LR_DECAY_TOKENS calculate-per-token-loss moe-token-dispatcher-type moe_token_drop_policy
    token_shuffle_group_size PAD_TOKEN PAD_TOKEN_ID EOS_TOKEN EOS_TOKEN_ID BOS_TOKEN_ID UNK_TOKEN image_token_id
    bytes_per_token BYTES_PER_TOKEN FLOPS_PER_TOKEN TOKEN_COUNT TOKEN_LIMIT token_ids HF_HUB_DISABLE_IMPLICIT_TOKEN
    HF_TOKEN_FILE HF_TOKEN_PATH hf_token_file PASSWORD_FILE SSH_KEY_PATH AWS_SHARED_CREDENTIALS_FILE
    AWS_WEB_IDENTITY_TOKEN_FILE MONKEY TURKEY KEYBOARD KEY_VALUE_HEADS num_key_value_heads KEY KEYS JSON_KEYS
    TEXT_KEY SORT_KEY DATA_KEY NCCL_IB_PKEY NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX
    NCCL_NET_PLUGIN NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_P2P_DISABLE NCCL_ALGO NCCL_PROTO RCCL_MSCCL_ENABLE UCX_TLS
    GLOO_SOCKET_IFNAME SSH_PORT SSH_AUTH_SOCK SSH_CONNECTION SSH_TTY SSH_USER PASSTHROUGH BYPASS BYPASS_CHECKS
    COMPASS PASSES NUM_PASSES TWO_PASS FORWARD_PASS BACKWARD_PASS PASSWORDLESS_SSH PASSENGER AUTHOR AUTHORS
    AUTHORITY XAUTHORITY AUTH_MODE PWD OLDPWD PATH PYTHONPATH LD_LIBRARY_PATH PATTERN PATCH PATIENCE HF_HOME
    HF_HUB_OFFLINE HF_DATASETS_CACHE HF_MODEL WANDB_PROJECT WANDB_MODE WANDB_ENTITY WANDB_DIR WANDB_NAME
    MLFLOW_TRACKING_URI MLFLOW_EXPERIMENT_NAME AWS_REGION AWS_PROFILE AWS_ENDPOINT_URL S3_ENDPOINT S3_ENDPOINT_URL
    GOOGLE_CLOUD_PROJECT AZURE_REGION AZURE_STORAGE_ACCOUNT COMET_PROJECT_NAME NGC_CLI_ORG SLACK_CHANNEL SECRETARY
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_MAX_CONNECTIONS OMP_NUM_THREADS MASTER_ADDR MASTER_PORT WORLD_SIZE XLA_FLAGS
    JAX_PLATFORMS HSA_NO_SCRATCH_RECLAIM TRAIN_ITERS SEQ_LENGTH GBS MBS TP PP DATA_PATH CHECKPOINT_PATH HOSTNAME
    HOME USER LANG SHELL TERM TMPDIR SLURM_JOB_ID SLURM_NODELIST DATASET_URL HTTP_PROXY http_proxy NO_PROXY
    tiktoken-pattern tiktoken-num-special-tokens fim-prefix-token fim-suffix-token fim-middle-token moe-token-dropping
    use-gigatoken num_moe_token_chunks moe_quantize_token_all_gather
    PROXY_URL CREDIT ACCREDITED execution.environment data.tokenizer config.hf_token_file
"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_a_secret_is_known_by_its_name_in_every_spelling(name: str) -> None:
    assert [spelling for spelling in (name, name.replace("_", "-"), f"MY_{name}") if not is_secret(spelling)] == []
    assert is_secret(f"config.env_dict.{name}")


@pytest.mark.parametrize("name", NO_SECRETS.split())
def test_what_only_looks_like_a_secret_is_none(name: str) -> None:
    assert [spelling for spelling in (name, name.lower(), name.replace("_", "-")) if is_secret(spelling)] == []


def test_no_field_and_no_key_that_is_read_is_a_secret() -> None:
    """The values that a configuration may give stay visible, however the rules change."""
    assert [path for path in FIELDS if is_secret(path)] == []
    assert [
        key for dialect in DIALECTS for key, row in table(dialect.module).items() if row.to and is_secret(key)
    ] == []


def test_a_long_name_takes_no_time() -> None:
    assert not is_secret("1" * 100_000 + "A")


# --- secrets in a text ------------------------------------------------------------------------------------------------

S = "s3cr3t-Value/1+2"


@pytest.mark.parametrize("text", [
    f"HF_TOKEN={S}", f"export WANDB_API_KEY={S};", f"--password {S}", f"--hf-token={S} --x", f"token: {S}, done",
    f'{{"api_key": "{S}"}}', f"AWS_SECRET_ACCESS_KEY = {S}", f"passwd:{S}", f"my-credentials={S}", f"x --secret\t{S}",
    f"WANDB_APIKEY={S}", f"GITHUB_PAT={S}", f"-password {S}", f"DB_PASS += {S}", f"hfToken => {S}",
    f"password: 'a b {S}'", f'HF_TOKEN="a \\" {S}"', f"HF_TOKEN=a\\ {S}", f'HF_TOKEN="a\n{S}\n"',
    f"HF_TOKEN: [a, '{S}']", f"HF_TOKEN: {{a: {{b: {S}}}}}", f"HF_TOKEN:\n  a: {S}\n", f"HF_TOKEN:\n- {S}\n- b",
    f"x:\n  HF_TOKEN: |\n    {S}\n    {S}\n", f"HF_TOKEN: ab,{S}", f'{{"HF_TOKEN":\n"{S}"}}',
    f'{{"HF_TOKEN": [\n1, [2,\n"{S}"]]}}', f'{{\\"HF_TOKEN\\": \\"{S}\\"}}', f'["--hf-token", "{S}"]',
    f"Authorization: Bearer {S}", f"env['HF_TOKEN'] = '{S}'", f"${{HF_TOKEN:-{S}}}", f"HF_TOKEN: [a, '{S}'",
    f'HF_TOKEN="a"{S}',
])  # fmt: skip
def test_what_is_named_a_secret_is_masked(text: str) -> None:
    assert S not in masked(text)
    assert "***" in masked(text)
    assert S not in masked(text, same_length=True)
    assert [len(line) for line in masked(text, same_length=True).split("\n")] == [len(x) for x in text.split("\n")]


def test_what_follows_a_secret_stays() -> None:
    assert masked("HF_TOKEN=a NCCL_DEBUG=INFO; x") == "HF_TOKEN=*** NCCL_DEBUG=INFO; x"
    assert masked('{"HF_TOKEN": {"a": [1]}, "b": 2}') == '{"HF_TOKEN": ***, "b": 2}'
    assert masked("a:\n  HF_TOKEN: x\n  b: 2\n") == "a:\n  HF_TOKEN: ***\n  b: 2\n"


def test_the_words_of_a_command_are_shown_without_the_values_of_secrets() -> None:
    words = (
        "docker run -e HF_TOKEN=a -eWANDB_API_KEY=a --env=DB_PASSWORD=a --login-token a --tp 2 hf_access_token=a "
        "--export=ALL,HF_TOKEN=a --load /out/hf_checkpoints --eos-token-id 2 HF_TOKEN= --hf-token --bf16"
    )
    shown = words.replace("=a", "=***").replace(" a ", " *** ")
    assert " ".join(masked_words(words.split())) == shown
    assert masked_words(["--api-key=a b", "HF_TOKEN=a 'b'", "--api-key", "a b"]) == [
        "--api-key=***", "HF_TOKEN=***", "--api-key", "***",
    ]  # fmt: skip


def test_an_access_token_is_known_by_its_look() -> None:
    assert masked("login with hf_abcdefgh12345678 failed") == "login with *** failed"


def test_a_password_in_a_url_is_hidden_under_any_name_and_still_travels() -> None:
    proxy, index = "http://alice:s3cr3t@proxy.corp:3128", "https://__token__:s3cr3t@pypi.corp/simple"
    given = {"HTTPS_PROXY": proxy, "PIP_INDEX_URL": index, "NO_PROXY": "http://host:80", "AT": "a@b"}
    kept = guarded(given)
    assert shown(kept) == {**given, "HTTPS_PROXY": "***", "PIP_INDEX_URL": "***"}
    assert revealed(kept) == given
    assert masked(f"wget {proxy} and {index}") == (
        "wget http://alice:***@proxy.corp:3128 and https://__token__:***@pypi.corp/simple"
    )
    assert len(masked(proxy, same_length=True)) == len(proxy)
    assert masked("http://:p@ss@host") == "http://:***@host"
    for text in ("http://host:80/a@b", "http://[fd00::1]:80/x", "git+ssh://git@host:22/x", "see http://a:1, mail b@c"):
        assert masked(text) == text


@pytest.mark.parametrize("text", [
    "max_tokens=4096", "TOKENIZERS_PARALLELISM=false", "12,000 tokens/s: fine", "the token is not there", "",
    "hf_model", "tokenizer: byte", "no secret here", "hf_token_file: /a", "HF_TOKEN_FILE=/a", "eos_token_id=2",
    "/run/secrets: /b",
])  # fmt: skip
def test_what_is_none_stays(text: str) -> None:
    assert masked(text) == text
