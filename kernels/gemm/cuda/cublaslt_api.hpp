#pragma once
// The functions of cuBLASLt that choir uses, loaded at run time. Types and constants come from its
// header.
#include <cublasLt.h>

#include <memory>
#include <string>
#include <string_view>

namespace choir::cublaslt {

struct Api {
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusName) get_status_name = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

/// Loads cuBLASLt on the first call; throws DeckError with absent_because() if it is missing.
const Api& api();
/// The reason why cuBLASLt cannot be used; empty if it can.
const std::string& absent_because();
/// "cuBLASLt 13.1.0 (libcublasLt.so.13)"; empty if absent.
std::string version_text();

/// Throws Error naming `what` and the library's status unless it is success.
void check(cublasStatus_t status, std::string_view what);

struct Destroy {
  void operator()(cublasLtHandle_t handle) const { api().destroy(handle); }
  void operator()(cublasLtMatmulDesc_t operation) const { api().destroy_operation(operation); }
  void operator()(cublasLtMatrixLayout_t layout) const { api().destroy_layout(layout); }
  void operator()(cublasLtMatmulPreference_t wish) const { api().destroy_preference(wish); }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy>;

}  // namespace choir::cublaslt
