#!/usr/bin/env bash
# fake_libcuda.sh CUDA_HOME FOLDER: builds FOLDER/libcuda.so.1, a driver without a device. cuDNN
# builds plans for a described device without asking the driver for anything except to load the
# generated kernel. Only that call, and the look-up of a function in a loaded module, succeed, with
# a handle to nothing; every other call fails with CUDA_ERROR_NO_DEVICE. The list of calls comes
# from the toolkit's own stub.
set -eu
cuda=$1 folder=$2
stub=$cuda/lib64/stubs/libcuda.so
mkdir -p "$folder"
source=$folder/fake_libcuda.c
granted="cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction cuModuleLoadData cuModuleLoadDataEx cuModuleGetFunction"
{
  echo 'static int nothing;'
  for call in $granted; do echo "int $call(void **handle) { *handle = &nothing; return 0; }"; done
  echo 'int cuDriverGetVersion(int *version) { *version = 13000; return 0; }'
  for call in cuGetErrorName cuGetErrorString; do
    echo "int $call(int error, const char **text) { *text = \"no device (stand-in driver)\"; return 0; }"
  done
  nm -D --defined-only "$stub" | awk -v defined="$granted cuDriverGetVersion cuGetErrorName cuGetErrorString" '
    BEGIN { n = split(defined, name, " "); for (i = 1; i <= n; i++) skip[name[i]] = 1 }
    $2 == "T" && $3 ~ /^cu/ && !($3 in skip) && !seen[$3]++ { print "int " $3 "(void) { return 100; }" }'
} >"$source"
"${CC:-cc}" -w -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$source"
