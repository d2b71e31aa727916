#pragma once
// A table of how fast the bandwidth-bound ops run on a device, and whether they are right.
#include <string>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

struct BenchRow {
  std::string op;
  Shape shape;
  DType dtype = DType::f32;
  double seconds = 0;           ///< median of the calls
  double bytes_per_second = 0;  ///< unavoidable bytes (as counted by the op) over seconds
  double copy_fraction = 0;     ///< of the rate at which `copy` moves as many bytes in the same run
  bool valid = false;           ///< agrees with the fp64 reference on this shape
};

/// The shapes of a bench: rows are tokens of a micro-batch.
struct BenchShape {
  std::int64_t rows = 768, width = 128, hidden = 512, vocabulary = 65;
  std::int64_t parameters = 0;  ///< AdamW and norms run over this many; 0 leaves them out
};

/// Every op at `shape` in f32 and bf16, random data, about `seconds` of calls per row. Local; cpu
/// only.
std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape, double seconds = 0.1);

/// "norm_forward  [768, 128]  f32  12.3 us  31.2 GB/s  87 %  VALID"
std::string to_string(const BenchRow& row);

}  // namespace choir::ops
