#pragma once
// The functions of cuBLASLt that choir uses, loaded at run time, and plans of products. Types and
// constants come from its header.

#include <cublasLt.h>

#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "choir/device/device.hpp"
#include "kernels/gemm/gemm.hpp"

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

// Products of one device, as planned by cuBLASLt.
//
// The library is column-major: our C [m, n] by rows is its C^T [n, m] by columns, the same memory.
// So we request C^T = op(B)^T op(A)^T: its "A" is our B, its "B" our A, its rows are our n, its
// columns our m.

/// Key of a plan: everything that it depends on.
struct Key {
  ops::Product product;
  std::array<std::uint32_t, 5> alignment;  // alignment of A, B, C, the vector, the pre-activation
  int multiprocessors = 0;                 // that the product may use; 0: all
  friend auto operator<=>(const Key&, const Key&) = default;
};
Key key_of(const GemmArgs& args);

/// One of the library's proposed algorithms.
struct Way {
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace;
};

/// A planned product.
struct Plan {
  Operation operation;
  Layout a, b, c;
  /// Indexed by the number of the proposal; empty for proposals that cannot be used.
  std::array<std::optional<Way>, ops::kMostProposals> ways;
  const Way* chosen =
      nullptr;  ///< one of `ways`; nullptr: the library does not support the product
  std::string refusal;
};

/// The plans, the handle and the scratch memory of one device.
class Plans {
 public:
  const Plan& of(const Stream& stream, const GemmArgs& args);
  /// Queues the product with one of the plan's algorithms.
  void run(const Plan& plan, const Way& way, const GemmArgs& args) const;
  void prefer(const ops::ProductChoices& choices) { choices_ = choices; }

 private:
  void prepare(const Stream& stream);
  Plan make(const Key& key, const GemmArgs& args) const;
  void ask(Plan& plan, const Key& key) const;
  const Way* choose(const Plan& plan, const Key& key) const;

  Handle handle_;
  NativeStream stream_ = nullptr;
  Buffer workspace_;
  std::map<Key, Plan> plans_;
  ops::ProductChoices choices_;
};

}  // namespace choir::cublaslt
