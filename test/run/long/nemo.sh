#!/usr/bin/env bash
# Recognisers as .nemo files, read by Python's tarfile and zipfile, PyYAML and torch.load: torch writes
# every tensor that it read into another archive, and choir imports it with the weights of the run. NeMo
# itself, if it is there, restores the model and transcribes as choir does.
# PYTHON=... names a Python with torch and yaml, and perhaps nemo; what is missing is skipped.
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/digits.sh
. "$root/test/run/lib/digits.sh"
limit=600
python=${PYTHON:-python3}
values() { tensors "$1" | grep -E "^(parameters|state/running)/"; }

cat >read.py <<'END'
import io, sys, tarfile, zipfile
import torch, yaml
source, copy = sys.argv[1:]
with tarfile.open(source, "r:") as tar, tarfile.open(copy, "w:") as out:
    for member in tar.getmembers():
        data = tar.extractfile(member).read()
        if member.name == "./model_config.yaml":
            config = yaml.safe_load(data)
            assert isinstance(config["preprocessor"]["dither"], float), config["preprocessor"]
            assert len(config["decoder"]["vocabulary"]) == config["decoder"]["num_classes"]
        if member.name == "./model_weights.ckpt":
            assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None
            weights = torch.load(io.BytesIO(data), weights_only=True)
            open("weights.ckpt", "wb").write(data)
            mapped = torch.load("weights.ckpt", weights_only=True, mmap=True)
            assert all(torch.equal(mapped[name], tensor) for name, tensor in weights.items())
            window = weights["preprocessor.featurizer.window"]
            # torch computes angles of up to 2 pi in single precision, with errors of up to 2.4e-7.
            torch.testing.assert_close(window, torch.hann_window(len(window), periodic=False), rtol=0, atol=5e-7)
            saved = io.BytesIO()
            torch.save(weights, saved)
            data = saved.getvalue()
        member.size = len(data)
        out.addfile(member, io.BytesIO(data))
print(len(weights), "tensors")
END

if ! "$python" -c "import torch, yaml" >import.log 2>&1; then
  skip "recognisers as torch reads them" "PYTHON=... has no torch or yaml"
  exit 0
fi
digits_recogniser "a recogniser" '"n_layer": 2, "conv_norm": "batchnorm"'
for type in f32 f16 bf16; do
  run 2 export run --format nemo --type $type --out $type.nemo
  expect "$type: exported" 0 "type=$type"
  check "... read by Python and torch" "$python" read.py $type.nemo torch_$type.nemo
  run 1 import $type.nemo --out run_$type
  run 1 import torch_$type.nemo --out torch_$type
  expect "... and from torch imported" 0 "step_00000000"
  check "... with the same weights" same "values run_$type" "values torch_$type"
done
check "f32 has the weights of the run" same "values run" "values run_f32"

if ! "$python" -c "import nemo.collections.asr" >import.log 2>&1; then
  skip "recognisers in NeMo" "PYTHON=... has no nemo"
  exit 0
fi
cat >restore.py <<'END'
import json, sys, wave
import numpy, torch
from nemo.collections.asr.models import ASRModel
source, texts = sys.argv[1:]
model = ASRModel.restore_from(source, map_location="cpu", strict=True).eval()
with open(texts, "w") as out:
    for line in map(json.loads, open("digits/val.json")):
        with wave.open("digits/" + line["audio_filepath"]) as sound:
            rate = sound.getframerate()
            sound.setpos(round(line["offset"] * rate))
            samples = numpy.frombuffer(sound.readframes(round(line["duration"] * rate)), "<i2")
        samples = torch.from_numpy(samples.astype("float32") / 32768)[None]
        length = torch.tensor([samples.shape[1]])
        with torch.no_grad():
            scores, lengths, _ = model(input_signal=samples, input_signal_length=length)
        print(model.decoding.ctc_decoder_predictions_tensor(scores, lengths)[0].text, file=out)
END
# writes_the_same RUN FILE: NeMo restores the file, and writes every recording as the run does.
writes_the_same() {
  run 0 transcribe "$1" --manifest digits/val.json --out "$1.json"
  sed -nE 's/.*"pred_text": *"([^"]*)".*/\1/p' "$1.json" >ours
  check "NeMo restores $2" "$python" restore.py "$2" theirs
  check "... and writes what choir writes" eval 'test -s ours && diff theirs ours'
}
writes_the_same run f32.nemo
run 1 prepare tokenizer train --out pieces --type bpe --vocab-size 24
run 1 prepare tokens train val --tokenizer pieces.model --name pieces
run 1 train digits.json run.dir=in_pieces data.labels=pieces checkpoint.interval=150
run 1 export in_pieces --format nemo --out pieces.nemo
expect "a recogniser of pieces" 0 "type=f32"
writes_the_same in_pieces pieces.nemo
