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
import json, sys
from nemo.collections.asr.models import ASRModel
model = ASRModel.restore_from(sys.argv[1], map_location="cpu").eval()
lines = [json.loads(line) for line in open("digits/val.json")]
texts = model.transcribe([line["audio_filepath"] for line in lines], batch_size=1)
for text in texts: print(getattr(text, "text", text))
END
run 0 transcribe run --manifest digits/val.json --out ours.json
check "NeMo restores and transcribes" eval '(cd digits && "$python" ../restore.py ../f32.nemo) >theirs 2>nemo.log'
check "... as choir does" diff theirs <(sed -nE 's/.*"pred_text": *"([^"]*)".*/\1/p' ours.json)
