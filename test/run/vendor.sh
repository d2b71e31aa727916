#!/usr/bin/env bash
# Tests without a GPU of the code that calls NVIDIA's libraries: products and attention on stand-ins
# for cuBLASLt and cuDNN that compute the requested result in host memory (test/vendor); the real
# cuBLASLt as far as it works without a driver; and a program that starts without either library.
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/cuda_build.sh"

tests=("$root/test/vendor/gemm_cublaslt_test.cpp")
stand_ins=(cublaslt:libcublasLt.so.13)
if has_feature CUDNN; then
  tests+=("$root/test/vendor/attention_cudnn_test.cpp")
  stand_ins+=(cudnn:libcudnn.so.9)
else skip "attention on a stand-in for cuDNN" "the build has no cuDNN"; fi
mkdir stand-ins
for one in "${stand_ins[@]}"; do
  # shellcheck disable=SC2046
  check "stand-in ${one#*:}" "${CXX:-g++}" -std=c++20 -O2 -shared -fPIC -Wall -Wextra -Wno-missing-field-initializers \
    -I"$root/include" -I"$root" $(setting FEATURE_CPPFLAGS) $(setting CUDA_CPPFLAGS) -Wl,-soname,"${one#*:}" \
    -o "stand-ins/${one#*:}" "$root/test/vendor/fake_${one%%:*}.cpp" "$root"/src/core/{error,dtype}.cpp -lfmt || exit
done
main=("$build"/obj/test/support/*.o)
check "tests on the stand-ins" compile on_stand_ins "${tests[@]}" "${main[@]}" || exit
LD_LIBRARY_PATH="$work/stand-ins:${LD_LIBRARY_PATH:-}" timeout 120 ./on_stand_ins >log 2>&1
grep -E -A 8 'Failure' log | head -n 60
count log || { tail -n 20 log; fail "tests on the stand-ins" "the program ended early"; }

check "tests of the real cuBLASLt" compile on_cublaslt "$root/test/vendor/cublaslt_descriptors_test.cpp" "${main[@]}" || exit
if LD_LIBRARY_PATH="$cuda/lib64:${LD_LIBRARY_PATH:-}" ./on_cublaslt >log 2>&1 || ! grep -q 'cannot be loaded' log; then
  grep -E -A 8 'Failure' log | head -n 40
  count log || fail "tests of the real cuBLASLt" "the program ended early"
else
  rm -f "$CHOIR_TEST_OUTCOMES"
  skip "the real cuBLASLt" "$(grep -o -m 1 'cuBLASLt cannot be loaded.*' log)"
fi
check "the program does not need them to start" eval '! ldd "$choir" | grep -E "libcudnn|libcublas|libcuda\.so|libnccl"'
