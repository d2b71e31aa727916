#pragma once
// A matrix product without the addresses of its operands: the key by which a library plans it. A
// device that only counts keeps a list of the requested products; on a GPU the algorithms that its
// library proposes for them can be timed, and one chosen for each. All local.
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/gemm.hpp"

namespace choir::ops {

/// Shape, types and options of a product: see GemmOptions and BatchedGemmOptions. Plain data,
/// without pointers.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements between matrices
  DType in = DType::f32, out = DType::f32;
  GemmEpilogue epilogue = GemmEpilogue::none;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool bias = false, pre_activation = false;
  friend auto operator<=>(const Product&, const Product&) = default;

  /// Bytes of one row of an operand as it is stored.
  std::int64_t row_bytes_of_a() const { return row(transpose_a ? m : k, in); }
  std::int64_t row_bytes_of_b() const { return row(transpose_b ? k : n, in); }
  std::int64_t row_bytes_of_c() const { return row(n, out); }

 private:
  static std::int64_t row(std::int64_t columns, DType type) {
    return columns * static_cast<std::int64_t>(size_of(type));
  }
};
/// "bf16 [256,768] x [768,3072]^T, bias, gelu_tanh": contains every field, so that equal texts are
/// equal products.
std::string to_string(const Product& product);

/// Products requested so far from a null device, in Device::plans(); with their epilogues if a GPU
/// would try them in one call.
struct ProductsAsked {
  std::set<Product> all;
};

/// Number of a library's proposals that are considered.
inline constexpr int kMostProposals = 8;
/// Seconds of every proposal for a product of the main stream, on random numbers in separate
/// memory, in the library's order; infinite if it cannot be run. Empty if the product is not
/// computed in one call here, or this is not a GPU. Throws Error if memory is short: see
/// product_bytes().
std::vector<double> time_proposals(const Stream& stream, const Product& product);
/// Bytes of device memory for its operands.
double product_bytes(const Product& product);
/// Number of the chosen proposal of each product, from 0.
using ProductChoices = std::map<Product, int>;
/// Products of a GPU that are planned from now on use these choices if their operands are aligned
/// like the timed ones; all others use the first proposal.
void choose_products(Device& device, const ProductChoices& choices);
/// The library whose proposals these are, "cuBLASLt 13.1.0 (libcublasLt.so.13)"; empty on other
/// devices.
std::string product_library(const Device& device);

}  // namespace choir::ops
