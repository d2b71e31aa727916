#pragma once
// A matrix product apart from where its operands lie: what a library plans it by. A device that
// only counts keeps a list of those it was asked for; on a GPU they can be timed in the ways that
// its library proposes, and the way of each be chosen. All local.
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

/// See GemmOptions and BatchedGemmOptions. Plain data, without pointers.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements, from matrix to matrix
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
/// "bf16 [256,768] x [768,3072]^T, bias, gelu_tanh": all of it, so that equal texts are equal
/// products.
std::string to_string(const Product& product);

/// What a null device was asked for so far, in Device::plans(): with its epilogues, where a GPU
/// would try them in one call.
struct ProductsAsked {
  std::set<Product> all;
};

/// So many of a library's proposals are looked at.
inline constexpr int kMostProposals = 8;
/// Seconds of every proposal for a product of the main stream, on random numbers in memory of its
/// own, in the library's order; infinite where it cannot be run. Empty: it is not done in one call
/// here, or this is no GPU. Throws Error when memory is short: see product_bytes().
std::vector<double> time_proposals(const Stream& stream, const Product& product);
/// Device memory of its operands.
double product_bytes(const Product& product);
/// Number of the proposal, from 0.
using ProductChoices = std::map<Product, int>;
/// Products of a GPU that are planned from now on take these ways, where their operands are aligned
/// as those that were timed; all others the first.
void choose_products(Device& device, const ProductChoices& choices);
/// "cuBLASLt 13.1.0 (libcublasLt.so.13)": whose proposals they are; empty on other devices.
std::string product_library(const Device& device);

}  // namespace choir::ops
