#pragma once
// The matrix products and the attention of a model, one by one, on random data: where the time of a
// step beyond its floor can be.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/device/device.hpp"
#include "choir/model/gpt_config.hpp"
#include "choir/nn/precision.hpp"

namespace choir {

/// One product of the step, as ops::gemm takes it: C [m, n] over an inner extent k.
struct StepGemm {
  std::string name;  ///< "qkv forward", "qkv d_input", "qkv d_weight"
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool to_master = false;  ///< weight gradients are written in the master type
  std::int64_t calls = 1;  ///< a micro-batch
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// Every product of a micro-batch of `rows` tokens. Pure.
std::vector<StepGemm> gemms_of(const GptConfig& config, std::int64_t rows);

struct ShapeRow {
  std::string name, shape;
  std::int64_t calls = 1;  ///< a micro-batch
  double seconds = 0;      ///< median of one call
  double flops = 0;        ///< of one call
  double rate() const { return flops / seconds; }
  double total() const { return seconds * static_cast<double>(calls); }
};

/// Local; about `seconds` of calls a row. `sequences` of config.block_size tokens.
std::vector<ShapeRow> bench_gemms(Device& device, const GptConfig& config,
                                  const Precision& precision, std::int64_t sequences,
                                  double seconds = 0.2);
std::vector<ShapeRow> bench_attention(Device& device, const GptConfig& config,
                                      const Precision& precision, std::int64_t sequences,
                                      double seconds = 0.3);

}  // namespace choir
