#include "choir/nn/recent_rows.hpp"

#include <algorithm>

#include "choir/ops/reduce.hpp"

namespace choir {

RecentRows::RecentRows(Pass& pass, std::int64_t most, std::int64_t chunk, std::int64_t width,
                       const char* tag)
    : memory_(pass.allocate({2 * most + chunk, width}, tag)), most_(most) {
  begin(pass.stream(), 0);
}

void RecentRows::begin(const Stream& stream, std::int64_t zeros) {
  CHOIR_CHECK(zeros <= most_, "{} rows of zeros where {} are kept", zeros, most_);
  first_ = 0, length_ = zeros;
  if (zeros > 0) ops::zero(stream, memory_.slice(0, zeros));
}

TensorView RecentRows::append(const Stream& stream, std::int64_t count, const ops::RowBlock& from) {
  const std::int64_t kept = std::min(length_, most_), width = memory_.shape.back();
  first_ += length_ - kept;
  if (first_ + kept + count > memory_.shape[0]) {
    CHOIR_CHECK(first_ >= kept, "a chunk of {} rows in a buffer of {} for {}", count,
                memory_.shape[0], most_);
    if (kept > 0) ops::copy(stream, memory_.slice(first_, kept), memory_.slice(0, kept));
    first_ = 0;
  }
  length_ = kept + count;
  ops::copy_rows(stream, memory_.dtype, count, width, from,
                 {memory_.slice(first_ + kept, count).data, width});
  return memory_.slice(first_, length_);
}

}  // namespace choir
