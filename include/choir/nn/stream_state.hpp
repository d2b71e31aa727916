#pragma once
// State that the modules of a model keep from one pass to the next for sequences that arrive in
// parts.
#include <cstdint>
#include <map>
#include <vector>

#include "choir/device/arena.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/copy_rows.hpp"

namespace choir {

/// Several streams that advance together: each pass brings the next positions of all of them. A
/// module has a track in the state, which it finds by its own address, so that modules hold no data
/// of streams and any number of states can exist.
class StreamState {
 public:
  struct Track {
    std::int64_t width = 0;  ///< elements of a row, in the compute type
    std::int64_t most = 0;   ///< maximum rows kept of each stream
    /// 0: a stream never has more rows than `most`. Otherwise the newest `most` rows are kept, and
    /// at most `chunk` rows arrive at once.
    std::int64_t chunk = 0;
    std::int64_t zeros = 0;  ///< rows of zeros before every stream
    /// For tracks that keep all rows: the module also works if only the device knows their number.
    bool counts_on_device = false;
    Tensor constant{};  ///< computed once by the module for all streams
  };
  /// Rows of all streams: those of the first are [count, width]; those of each next stream begin
  /// `stride` elements later.
  struct Rows {
    TensorView first;
    std::int64_t stride = 0;
  };

  /// Endless streams may have more positions than a model has in training: modules that see
  /// everything before keep the newest part of it, positions arrive one at a time, and rotary
  /// angles are those of the arriving position (SelfAttention::forward).
  explicit StreamState(std::int64_t streams, bool endless = false)
      : streams_(streams), endless_(endless) {}

  /// Memory for the track comes from the arena of the pass. begin() must be called afterwards.
  void add(Pass& pass, const void* module, Track track, const char* tag);
  /// New streams replace the old ones.
  void begin(const Stream& stream);

  /// For a plan: acts as if new streams had brought this many positions.
  void pretend(std::int64_t positions);

  /// Keeps the streams with these numbers (ascending) under the numbers 0, 1, ..., and ends the
  /// others.
  void keep(const Stream& stream, const std::vector<std::int64_t>& streams);

  std::int64_t streams() const { return streams_; }
  bool endless() const { return endless_; }
  /// Positions of each stream that passes have brought.
  std::int64_t seen() const { return seen_; }
  /// The sequence with which a pass over the next positions of all streams begins.
  Sequence next(std::int64_t tokens);
  /// Called after the whole model has seen these positions.
  void advance(std::int64_t tokens) { seen_ += tokens; }

  /// True if a pass over one more position can be recorded as a graph.
  bool counts_on_device() const;
  /// The sequence with which such a recorded pass begins. At every replay it reads the number of
  /// earlier positions from `seen`, which is in device memory.
  Sequence recorded(const std::int32_t* seen);
  /// Called after a replay: the recorded pass has brought the next position of all streams.
  void replayed();

  const Track& track(const void* module) const { return kept_.at(module).track; }
  /// Appends the rows of this pass, stream after stream, to the track of the module. Returns them
  /// together with the older rows that were kept, valid until the next call; in a recorded pass,
  /// returns all rows for which there is room.
  Rows append(const Pass& pass, const void* module, const ops::RowBlock& from);

 private:
  // Rows are consecutive. A track that keeps the newest rows has room for twice as many and a
  // chunk: when it is full, they move to the beginning without overlap.
  struct Kept {
    Track track;
    Tensor memory;  ///< [streams, rows, width]
    std::int64_t first = 0, length = 0, seen = 0;
    TensorView rows(std::int64_t of_stream, std::int64_t from, std::int64_t count) const;
    std::int64_t stride() const { return memory.shape[1] * memory.shape[2]; }
  };
  Rows append_where_the_device_says(const Pass& pass, const Kept& kept,
                                    const ops::RowBlock& from) const;

  std::int64_t streams_, seen_ = 0;
  bool endless_;
  std::map<const void*, Kept> kept_;
};

}  // namespace choir
