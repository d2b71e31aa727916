#pragma once
// Products of one device, as cuBLASLt plans them.
//
// The library is column-major: what we call C [m, n] by rows it calls C^T [n, m] by columns, the
// same memory. So C^T = op(B)^T op(A)^T is asked for: its "A" is our B, its "B" our A, its rows are
// our n, its columns our m.
#include <array>
#include <compare>
#include <map>
#include <optional>
#include <string>

#include "choir/device/device.hpp"
#include "kernels/gemm/cuda/cublaslt_api.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir::cublaslt {

/// Everything a plan depends on.
struct Key {
  ops::Product product;
  std::array<std::uint32_t, 5> alignment;  // of A, B, C, the vector, the pre-activation
  friend auto operator<=>(const Key&, const Key&) = default;
};
Key key_of(const GemmArgs& args);

/// One of the library's proposals.
struct Way {
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace;
};

/// One product, compiled.
struct Plan {
  Operation operation;
  Layout a, b, c;
  /// By the number of the proposal; nothing for one that cannot be used.
  std::array<std::optional<Way>, ops::kMostProposals> ways;
  const Way* chosen = nullptr;  ///< of them; nullptr: the library does not offer the product
  std::string refusal;
};

/// The plans, the handle and the scratch memory of one device.
class Plans {
 public:
  const Plan& of(const Stream& stream, const GemmArgs& args);
  /// Queues the product by one of the plan's ways.
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
