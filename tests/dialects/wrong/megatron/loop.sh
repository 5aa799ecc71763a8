for TP in 1 2 4; do
  TP=$TP bash train_llama3.sh
done
