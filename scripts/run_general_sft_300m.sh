#!/usr/bin/env bash
# General SFT of SearchLM-300M on 7 GPUs: batch 1, accumulation 8, effective 56 packed batches a step. Resumes by itself
# when its checkpoint is there, and logs under logs/. Started from anywhere; relative paths are those of the repository.
# Every setting below can be given by environment, for example: NUM_GPUS=2 DATA_PATH=my.jsonl bash scripts/run_general_sft_300m.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

NUM_GPUS=${NUM_GPUS:-7}                     # 0: one process on the CPU
DATA_PATH=${DATA_PATH:-dataset/general_sft_14g.jsonl}
MODEL_PROFILE=${MODEL_PROFILE:-SearchLM-300M}
WEIGHT_PATH=${WEIGHT_PATH:-out/pretrain_searchlm_1024_mla.pth}
SAVE_WEIGHT=${SAVE_WEIGHT:-general_sft_14g}
EPOCHS=${EPOCHS:-1}
MICRO_BATCH=${MICRO_BATCH:-1}               # packed batches in one forward pass
ACCUMULATION_STEPS=${ACCUMULATION_STEPS:-8}
LEARNING_RATE=${LEARNING_RATE:-1e-5}
SAVE_INTERVAL=${SAVE_INTERVAL:-200}
LOG_INTERVAL=${LOG_INTERVAL:-10}
NUM_WORKERS=${NUM_WORKERS:-4}               # tokenising processes of every GPU
USE_WANDB=${USE_WANDB:-0}
FORCE_RESUME=${FORCE_RESUME:-}              # 1: resume or fail; 0: never resume; empty: resume when there is a checkpoint
TOKENIZER=${TOKENIZER:-model}

fail() { echo "error: $1" >&2; exit 2; }

[ -f "$DATA_PATH" ] || fail "$DATA_PATH: no such file; name the SFT data with DATA_PATH"
[ -f "$WEIGHT_PATH" ] || fail "$WEIGHT_PATH: no such weight file; name it with WEIGHT_PATH"
# out/pretrain_searchlm_1024_mla.pth -> folder out, name pretrain_searchlm, size and kind 1024_mla
[[ $(basename "$WEIGHT_PATH") =~ ^(.+)_([0-9]+(_(mla|mha|mqa|moe))*)\.pth$ ]] ||
    fail "$WEIGHT_PATH: expected a name like pretrain_searchlm_1024_mla.pth"
from=${BASH_REMATCH[1]} size=${BASH_REMATCH[2]} folder=$(dirname "$WEIGHT_PATH")
for one in NUM_GPUS MICRO_BATCH ACCUMULATION_STEPS SAVE_INTERVAL LOG_INTERVAL NUM_WORKERS; do
    [[ ${!one} =~ ^[0-9]+$ ]] || fail "$one=${!one}: a whole number is expected"
done

latest=checkpoints/${SAVE_WEIGHT}_${size}_latest
case $FORCE_RESUME in
    1) [ -f "$latest" ] || fail "FORCE_RESUME=1, but there is no $latest to resume from"
       resume=1 ;;
    0) resume=0 ;;
    "") if [ -f "$latest" ]; then resume=1; else resume=0; fi ;;
    *) fail "FORCE_RESUME=$FORCE_RESUME: 1, 0 or nothing is expected" ;;
esac
case $USE_WANDB in
    1 | true) tracker=wandb ;;
    0 | false) tracker=none ;;
    *) fail "USE_WANDB=$USE_WANDB: 1 or 0 is expected" ;;
esac

mkdir -p logs
log=logs/${SAVE_WEIGHT}_$(date +%Y%m%d_%H%M%S).log
if [ "$NUM_GPUS" -eq 0 ]; then
    start=(python)
else
    command -v deepspeed >/dev/null || fail "deepspeed is not installed; pip install 'agentic-data-analysis[deepspeed]', or NUM_GPUS=0 for the CPU"
    start=(deepspeed "--num_gpus=$NUM_GPUS")
fi
[ "$resume" -eq 0 ] || echo "resuming from $(cat "$latest")"
echo "effective batch $(((NUM_GPUS > 0 ? NUM_GPUS : 1) * MICRO_BATCH * ACCUMULATION_STEPS)); log: $log"

root=$PWD
absolute() { case $1 in /*) echo "$1" ;; *) echo "$root/$1" ;; esac }
cd trainer
"${start[@]}" train_full_sft_deepspeed.py --model_profile "$MODEL_PROFILE" --tokenizer "$TOKENIZER" \
    --from_weight "$from" --save_dir "$(absolute "$folder")" --save_weight "$SAVE_WEIGHT" \
    --data_path "$(absolute "$DATA_PATH")" --dtype float16 --epochs "$EPOCHS" --batch_size "$MICRO_BATCH" \
    --accumulation_steps "$ACCUMULATION_STEPS" --learning_rate "$LEARNING_RATE" --save_interval "$SAVE_INTERVAL" \
    --log_interval "$LOG_INTERVAL" --num_workers "$NUM_WORKERS" --report_to "$tracker" --from_resume "$resume" "$@" \
    2>&1 | tee -i "$root/$log"
