#pragma once
// What the modules of a model keep from one pass to the next where sequences come piece by piece.
#include <cstdint>
#include <map>
#include <vector>

#include "choir/device/arena.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/copy_rows.hpp"

namespace choir {

/// Several streams that go on together: each pass brings the next positions of all of them. A
/// module has a track in the state and finds it again by its own address, so that modules hold
/// nothing of a stream themselves and any number of states can be alive.
class StreamState {
 public:
  struct Track {
    std::int64_t width = 0;  ///< elements of a row, in the compute type
    std::int64_t most = 0;   ///< rows that are kept of each stream
    /// 0: a stream has no more rows than `most`. Otherwise the newest are kept, and at most this
    /// many come at once.
    std::int64_t chunk = 0;
    std::int64_t zeros = 0;  ///< rows of zeros that are before every stream
    /// Where all are kept: the module works as well when only the device knows how many there are.
    bool counts_on_device = false;
    Tensor constant{};  ///< what the module has computed once for all streams
  };
  /// Rows of all streams: those of the first are [count, width], those of the next one begin
  /// `stride` elements behind them.
  struct Rows {
    TensorView first;
    std::int64_t stride = 0;
  };

  /// Endless streams may have more positions than a model has in training: modules that see all
  /// that was before keep the newest of it, one position comes at once, and rotary angles are those
  /// of the position that comes (SelfAttention::forward).
  explicit StreamState(std::int64_t streams, bool endless = false)
      : streams_(streams), endless_(endless) {}

  /// Memory for the track comes from the arena of the pass. Streams have to begin() afterwards.
  void add(Pass& pass, const void* module, Track track, const char* tag);
  /// New streams take the place of the old ones.
  void begin(const Stream& stream);

  /// In a plan: as if new streams had brought so many positions.
  void pretend(std::int64_t positions);

  /// Those of these numbers (ascending) go on, under the numbers 0, 1, ..., and the others end.
  void keep(const Stream& stream, const std::vector<std::int64_t>& streams);

  std::int64_t streams() const { return streams_; }
  bool endless() const { return endless_; }
  /// Positions of each stream that passes have brought.
  std::int64_t seen() const { return seen_; }
  /// What a pass over the next positions of all streams is begun with, ...
  Sequence next(std::int64_t tokens);
  /// ... and what follows when all of the model has seen them.
  void advance(std::int64_t tokens) { seen_ += tokens; }

  /// Whether a pass over one more position can be recorded as a graph.
  bool counts_on_device() const;
  /// What such a pass is begun with. Whenever it runs, it reads in `seen`, memory of the device,
  /// how many positions there are before.
  Sequence recorded(const std::int32_t* seen);
  /// A recorded pass has brought the next position of all streams.
  void replayed();

  const Track& track(const void* module) const { return kept_.at(module).track; }
  /// Adds the rows of this pass, those of one stream behind those of another, to the track of the
  /// module. Returns them behind the older ones that were kept, until the next call; in a recorded
  /// pass, all rows that there is room for.
  Rows append(const Pass& pass, const void* module, const ops::RowBlock& from);

 private:
  // Rows lie one after another. Where newest rows alone are kept there is room for twice as many
  // and a chunk: when it is used up they move to the beginning, and nothing overlaps.
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
