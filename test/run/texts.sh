#!/usr/bin/env bash
# Documents: JSON lines, Parquet and tars, prepared and on the fly. Damaged rows are counted with
# their lines, layouts get the same tokens, and a killed run continues bit by bit.
. "$(dirname "$0")/lib/common.sh"

# Five files of documents; the second has damaged rows.
awk '{ printf "{\"id\": %d, \"body\": \"%s\"}\n", NR, $0 }' text.txt >all.jsonl
mkdir documents
split -n l/5 --additional-suffix=.jsonl all.jsonl documents/part_
sed -i -e '3s/.*/{"body": NaN}/' -e '7s/body/other/' documents/part_ab.jsonl
gzip documents/part_ac.jsonl
zstd -q --rm documents/part_ad.jsonl
damaged=("2 rows left out" "not valid JSON 1 (first 'documents/part_ab.jsonl', line 3" "no field 'body' 1 (first 'documents/part_ab.jsonl', line 7)")

run 0 prepare text documents --out one --tokenizer byte --text-field body
expect "prepare documents" 0 "documents   1,398" "${damaged[@]}"
run 1 prepare text documents --out one --tokenizer bpe --vocab-size 300 --text-field body
expect "other options do not replace prepared data" 3 "'one' already holds other prepared data: 5 text files, tokenizer byte; another request in: tokenizer, vocab_size" "--overwrite"
run 0 prepare text all.jsonl --out one --tokenizer byte --text-field body
expect "... nor do other files" 3 "another request in: sources"
run 0 prepare text documents --out one --tokenizer byte --text-field body
expect "... but the same request does" 0 "documents   1,398"
run 1 prepare text documents --out one --tokenizer bpe --vocab-size 300 --text-field body --overwrite
expect "... with bpe" 0 "documents   1,398" "${damaged[@]}"
run 2 prepare text documents --out two --tokenizer one/tokenizer.json --text-field body
expect "... on two ranks" 0 "documents   1,398" "${damaged[@]}"
check "... to the same files" cmp one/train_00000.tok two/train_00000.tok
{ echo "["; sed '$!s/$/,/' all.jsonl; echo "]"; } >array.jsonl
for name in all array; do
  run 2 prepare text $name.jsonl --out from_$name --tokenizer one/tokenizer.json --text-field body
  expect "prepare documents: $name" 0 "documents   1,400"
done
check "... one array gives what its lines give" cmp from_all/train_00000.tok from_array/train_00000.tok
run 2 prepare text documents --out never --tokenizer one/tokenizer.json
expect "another field" 3 "no row of 'documents/part_aa.jsonl' has a text: " "no field 'text' 1399 (first "
run 1 prepare text "$root/test/unit/data/sources/golden/zstd_row_groups.parquet" --out parquet --tokenizer one/tokenizer.json
expect "prepare Parquet" 0 "documents   244"
head -c 900 documents/part_ac.jsonl.gz >cut.jsonl.gz
run 2 prepare text cut.jsonl.gz --out never --tokenizer one/tokenizer.json --text-field body
expect "a file that is cut off" 3 "cut.jsonl.gz" "cut off (after line "

fly=(data.text_field=body 'data.val=["one/val_00000.tok"]' model.vocab_size=0)
documents='data.train=["documents"]' tokens=data.tokenizer=one/tokenizer.json
on_the_fly() {  # on_the_fly RANKS RUN OVERRIDE...
  local ranks=$1 directory=$2
  shift 2
  run "$ranks" train "$debug" "${fly[@]}" "$documents" "$tokens" data.on_the_fly="${on:-true}" run.dir="$directory" \
    train.precision=fp64 "$@"
}
on_the_fly 1 straight
expect "on the fly" 0 "summary:" "${damaged[@]}" "counting the tokens of 'documents' once, in 5 units"
started "on the fly: said in the log" straight "in 5 units" "encoded on the fly by 2 threads a rank; 1,398 documents"
on_the_fly 2 again data.text_threads=3
expect "... on two ranks" 0 "summary:" "${damaged[@]}"
check "... counts no second time" lacks out "counting the tokens"
started "another number of threads" again "encoded on the fly by 3 threads a rank"
check "... the same losses" close_losses straight again 1e-12
on_the_fly 2 tensor parallel.tensor=2
expect "... tensor parallel" 0 "summary:"
check "... the same losses again" close_losses straight tensor 1e-12
on_the_fly 4 both parallel.pipeline=2 parallel.zero=1
expect "... pipelined, ZeRO" 0 "summary:"
check "... the same losses as well" close_losses straight both 1e-12

on_the_fly 1 separate data.documents=separate
expect "... with separate documents" 0 "summary:"
started "separate documents: said in the log" separate "documents are separate; they end with token"
on_the_fly 2 separate2 data.documents=separate
expect "... on two ranks" 0 "summary:"
check "... the same losses of separate documents" close_losses separate separate2 1e-12
check "... which are others" eval '! close_losses straight separate 1e-3 >/dev/null'

on_the_fly 2 killed fault.enable=true fault.kill_rank=1 fault.kill_step=14 checkpoint.async=false
expect_killed "killed"
on_the_fly 2 killed
expect "... continues" 0 "resumed from killed/checkpoints/step_00000010"
check "... with the same losses, bit by bit" same_losses again killed
check "... with the same tensors, bit by bit" same_tensors again killed
on=false on_the_fly 2 killed train.max_steps=22 optimizer.decay_steps=22
expect "another order on resume is refused" 2 "data.on_the_fly: " "checkpoint.allow_changes"
echo '{"body": "one more"}' >>documents/part_ae.jsonl
on_the_fly 2 killed train.max_steps=22 optimizer.decay_steps=22
expect "a changed text on resume is refused" 2 "the data were: train "

bad=("${fly[@]}" data.on_the_fly=true run.dir=bad)
run 1 train "$debug" "${bad[@]}" "$documents" data.tokenizer=char
expect "characters on the fly" 2 "data.on_the_fly" "data.tokenizer" "\"byte\""
run 1 train "$debug" "${bad[@]}" "$documents" "$tokens" data.val_fraction=0.3
expect "a reserved part on the fly" 2 "data.val_fraction"
run 2 train "$debug" "${bad[@]}" 'data.train=["one"]' "$tokens"
expect "tokens on the fly" 3 "'one' is no text"
run 2 train "$debug" "${bad[@]}" 'data.train=["nowhere.jsonl"]' "$tokens"
expect "no documents" 3 "nowhere.jsonl"
run 1 train "$debug" "${bad[@]}" "$documents" data.tokenizer=words
expect "a tokenizer of no kind" 2 "data.tokenizer" "'words' is neither char nor byte"
run 1 train "$debug" "${bad[@]}" "$documents" data.tokenizer=bpe
expect "a BPE that is not trained yet" 2 "data.tokenizer" "choir prepare text FILES --out data/NAME --tokenizer bpe --vocab-size 8192"
run 1 train "$debug" data.text_field=text "${fly[@]:1}" data.on_the_fly=true run.dir=bad "$documents" "$tokens"
expect "another field on the fly" 3 "no field 'text'"

# Two paths to one file: its text would be trained on and validated on.
mkdir linked && ln -s ../text.txt linked/again.txt
run 0 prepare text text.txt linked text.txt --out once
expect "a text that several paths lead to is read once" 0 "text        1 file," \
  "'linked/again.txt' is the same file as 'text.txt' and is read once" "'text.txt' is named twice and read once"
run 0 train "$debug" 'data.train=["text.txt","linked/again.txt"]' run.dir=once.run train.max_steps=1 checkpoint.interval=0
expect "... also by a deck" 0 "'linked/again.txt' is the same file as 'text.txt' and is read once"
