#!/usr/bin/env bash
# The figures of the shipped adapter's card, from nothing: data, training (two runs of 72 and 80 minutes on two cores, the
# second going on from the first), and both evaluations with the base model beside the adapter. Usage: benchmarks/adapter.sh [WORK_DIR]; AGENTIC_BENCH names the real csv files.
# SKIP_TRAINING=1 evaluates the adapter that is shipped instead of training a new one.
set -euo pipefail
work=${1:-runs/adapter}
bench=${AGENTIC_BENCH:-../shared/bench}/opsdata
mkdir -p "$work"

# The operations and metrics of the first release, which the adapter was trained on; `agentic build` has more by now.
first=(--unseen_size 0
    --operations value extreme top_k change change_percent difference share count_above what_if
    --metric_names gmv refund_amount net_revenue refund_rate.amount refund_rate.orders orders aov.gross aov.net spend impressions clicks ctr
    cpc cpm roas.gross roas.net new_users active_users new_user_share cac gmv_per_user orders_per_user)

agentic models fetch smollm2
[ -f "$work/data/manifest.json" ] || agentic build --output_dir "$work/data" --train_size 2400 --dev_size 100 --test_size 200 \
    --general_size 5000 --seed 7 "${first[@]}"
model=default
if [ -z "${SKIP_TRAINING:-}" ]; then
    for name in general train; do
        agentic dataset --input "$work/data/$name.jsonl" --output "$work/data/sft_$name.jsonl"
    done
    agentic sft --data_path "$work/data/sft_general.jsonl" "$work/data/sft_train.jsonl" --output_dir "$work/sft" \
        --tokens_per_batch 3072 --learning_rate 1e-3 --logging_steps 5 --save_steps 60 --max_minutes 72
    # The second run: the operations tasks again, and general questions over tables that the first run did not have.
    [ -f "$work/more/manifest.json" ] || agentic build --output_dir "$work/more" --train_size 4 --dev_size 0 --test_size 0 \
        --general_size 4000 --seed 8 "${first[@]}"
    agentic dataset --input "$work/more/general.jsonl" --output "$work/more/sft_general.jsonl" --limit 2300
    agentic sft --model_name_or_path "$work/sft/final" --data_path "$work/data/sft_train.jsonl" "$work/more/sft_general.jsonl" \
        --output_dir "$work/sft2" --tokens_per_batch 3072 --learning_rate 6e-4 --logging_steps 5 --save_steps 60 \
        --max_minutes 80 --seed 1
    model=$work/sft2/final
fi

# Held-out operations tasks: programs that no training task has.
for one in smollm2 "$model"; do
    agentic eval --data "$work/data/test.jsonl" --model "$one" --output_dir "$work/eval-ops-$(basename "$one")" --max_new_tokens 200
done

# Questions over twelve real files, gold by execution; no table of them was ever trained on.
agentic questions --count 120 --seed 0 --output "$work/real.jsonl" \
    "$bench"/penguins/penguins.csv "$bench"/gapminder/gapminder.csv "$bench"/nycflights13/planes.csv \
    "$bench"/nycflights13/airports.csv "$bench"/nycflights13/weather.csv "$bench"/nycflights13/flights_january.csv \
    "$bench"/bokeh/SampleSuperstore.csv.gz "$bench"/bokeh/us_marriages_divorces.csv "$bench"/bokeh/sprint.csv \
    "$bench"/vega/seattle-weather.csv "$bench"/vega/la-riots.csv "$bench"/vega/iowa-electricity.csv
for one in smollm2 "$model"; do
    agentic eval --data "$work/real.jsonl" --model "$one" --output_dir "$work/eval-real-$(basename "$one")" --max_new_tokens 200
done
