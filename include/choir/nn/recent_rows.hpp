#pragma once
// The newest rows of a stream of activations: what attention and convolutions over a chunk read of
// the chunks before it. Rows lie one after another in a buffer of twice what is kept and one chunk;
// where it is full what is kept moves to its beginning, so that nothing overlaps.
#include "choir/nn/pass.hpp"
#include "choir/ops/copy_rows.hpp"

namespace choir {

class RecentRows {
 public:
  RecentRows() = default;
  /// Keeps `most` rows of `width` elements of the compute type; at most `chunk` come at a time.
  RecentRows(Pass& pass, std::int64_t most, std::int64_t chunk, std::int64_t width,
             const char* tag);

  /// A new stream: before it are `zeros` (at most `most`) rows of zeros.
  void begin(const Stream& stream, std::int64_t zeros);
  /// Copies `count` rows; what there was, as far as it is kept, and behind it the new ones: [kept +
  /// count, width], valid until the next call.
  TensorView append(const Stream& stream, std::int64_t count, const ops::RowBlock& from);

 private:
  Tensor memory_;
  std::int64_t most_ = 0, first_ = 0, length_ = 0;
};

}  // namespace choir
