#!/usr/bin/env bash
# RL from a deliberately light SFT start on the embedded 135M model: success before and after on 400 test questions over tables that
# neither run has seen, greedy and at temperature 0.7 (three samples a question), and the curves as PNG. Usage: benchmarks/rl.sh [WORK_DIR]
# By environment: MINUTES of RL (60), STRATEGY (rl), LOSS (grpo), SEED (1), TEST (400 questions). What is finished is not done again.
# On two cores: SFT 4 minutes, RL as told, the four evaluations half an hour. Let nothing else use the cores meanwhile.
set -euo pipefail
work=${1:-runs/rl-135m}
test=${TEST:-400}
run=$work/${STRATEGY:-rl}-${LOSS:-grpo}-${SEED:-1}
mkdir -p "$work"

agentic models fetch smollm2
questions() { # name, number, seed: generated tables and questions with computed gold
    [ -f "$work/$1/manifest.json" ] || agentic build --output_dir "$work/$1" --train_size 1 --dev_size 0 --test_size 0 --language en \
        --general_size "$2" --seed "$3"
}
questions train 1600 31
questions dev 100 32
questions test "$test" 33

head -n 240 "$work/train/general.jsonl" >"$work/train/light.jsonl"
tail -n +241 "$work/train/general.jsonl" >"$work/train/rl.jsonl"
if [ ! -d "$work/start/final" ]; then
    agentic dataset --input "$work/train/light.jsonl" --output "$work/train/light_sft.jsonl"
    agentic sft --data_path "$work/train/light_sft.jsonl" --output_dir "$work/start" --lora_rank 0 --learning_rate 1e-4 --warmup_steps 4
fi

resume=0
[ ! -f "$run/run.json" ] || resume=1
[ -d "$run/final" ] || agentic train --data "$work/train/rl.jsonl" --dev_data "$work/dev/general.jsonl" --dev_tasks 48 --eval_steps 20 \
    --output_dir "$run" --model_name_or_path "$work/start/final" --strategy "${STRATEGY:-rl}" --loss_type "${LOSS:-grpo}" \
    --num_generations 6 --batch_size 8 --temperature 0.9 --max_turns 4 --max_new_tokens 128 --max_total_tokens 400 \
    --learning_rate 1e-5 --warmup_steps 3 --max_minutes "${MINUTES:-60}" --epochs 3 --seed "${SEED:-1}" --resume $resume
agentic plot "$run"

for model in "$work/start/final" "$run/best"; do
    name=$(basename "$(dirname "$model")")
    agentic eval --data "$work/test/general.jsonl" --model "$model" --output_dir "$work/eval-$name-greedy" --max_new_tokens 128 --batch_size 48
    agentic eval --data "$work/test/general.jsonl" --model "$model" --output_dir "$work/eval-$name-sampled" --max_new_tokens 128 --batch_size 48 \
        --temperature 0.7 --samples 3
done
