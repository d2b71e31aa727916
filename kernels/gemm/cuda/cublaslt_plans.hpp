#pragma once
// Products of one device, as planned by cuBLASLt.
//
// The library is column-major: our C [m, n] by rows is its C^T [n, m] by columns, the same memory.
// So we request C^T = op(B)^T op(A)^T: its "A" is our B, its "B" our A, its rows are our n, its
// columns our m.
#include <array>
#include <compare>
#include <map>
#include <optional>
#include <string>

#include "choir/device/device.hpp"
#include "kernels/gemm/cuda/cublaslt_api.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir::cublaslt {

/// Key of a plan: everything that it depends on.
struct Key {
  ops::Product product;
  std::array<std::uint32_t, 5> alignment;  // alignment of A, B, C, the vector, the pre-activation
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
