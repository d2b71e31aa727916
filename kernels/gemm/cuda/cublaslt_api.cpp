#include "kernels/gemm/cuda/cublaslt.hpp"

#include "choir/core/error.hpp"
#include "src/core/process.hpp"

namespace choir::cublaslt {
namespace {

struct Loaded {
  Loaded() : library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    library.find(api.get_version, "cublasLtGetVersion");
    library.find(api.get_status_name, "cublasLtGetStatusName");
    library.find(api.create, "cublasLtCreate");
    library.find(api.destroy, "cublasLtDestroy");
    library.find(api.create_operation, "cublasLtMatmulDescCreate");
    library.find(api.destroy_operation, "cublasLtMatmulDescDestroy");
    library.find(api.set_operation, "cublasLtMatmulDescSetAttribute");
    library.find(api.create_layout, "cublasLtMatrixLayoutCreate");
    library.find(api.destroy_layout, "cublasLtMatrixLayoutDestroy");
    library.find(api.set_layout, "cublasLtMatrixLayoutSetAttribute");
    library.find(api.create_preference, "cublasLtMatmulPreferenceCreate");
    library.find(api.destroy_preference, "cublasLtMatmulPreferenceDestroy");
    library.find(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
    library.find(api.choose, "cublasLtMatmulAlgoGetHeuristic");
    library.find(api.multiply, "cublasLtMatmul");
  }
  SharedLibrary library;
  Api api;
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Api& api() {
  if (!loaded().library.loaded())
    throw DeckError(absent_because(),
                    "load the CUDA module, or put its lib64 folder into LD_LIBRARY_PATH");
  return loaded().api;
}

const std::string& absent_because() {
  return loaded().library.reason();
}

std::string version_text() {
  if (!loaded().library.loaded()) return {};
  const std::size_t v = loaded().api.get_version();
  return fmt::format("cuBLASLt {}.{}.{} ({})", v / 10000, v / 100 % 100, v % 100,
                     loaded().library.soname());
}

void check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ExitCode::other,
                fmt::format("cuBLASLt: {}: {}", what, api().get_status_name(status)));
}

}  // namespace choir::cublaslt
