#include "choir/nn/stream_state.hpp"

#include <algorithm>
#include <utility>

#include "kernels/sums/sums.hpp"

namespace choir {

void StreamState::add(Pass& pass, const void* module, Track track, const char* tag) {
  CHOIR_CHECK(track.zeros <= track.most, "{} rows of zeros where {} are kept", track.zeros,
              track.most);
  const std::int64_t rows = track.chunk > 0 ? 2 * track.most + track.chunk : track.most;
  Tensor memory = pass.allocate({streams_, rows, track.width}, tag);
  const bool is_new =
      kept_.emplace(module, Kept{.track = std::move(track), .memory = std::move(memory)}).second;
  CHOIR_CHECK(is_new, "a module has a second track for {}", tag);
}

TensorView StreamState::Kept::rows(std::int64_t of_stream, std::int64_t from,
                                   std::int64_t count) const {
  const Shape shape{memory.shape[1], memory.shape[2]};
  return memory.slice(of_stream, 1).reshaped(shape).slice(from, count);
}

void StreamState::begin(const Stream& stream) {
  seen_ = 0;
  for (auto& [module, kept] : kept_) {
    kept.first = kept.seen = 0;
    kept.length = kept.track.zeros;
    for (std::int64_t b = 0; kept.length > 0 && b < streams_; ++b)
      ops::zero(stream, kept.rows(b, 0, kept.length));
  }
}

void StreamState::pretend(std::int64_t positions) {
  seen_ = positions;
  for (auto& [module, kept] : kept_) {
    kept.first = 0;
    kept.seen = positions;
    kept.length = std::min(kept.track.zeros + positions, kept.track.most);
  }
}

void StreamState::keep(const Stream& stream, const std::vector<std::int64_t>& streams) {
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const auto to = static_cast<std::int64_t>(i);
    CHOIR_CHECK(streams[i] < streams_ && (i == 0 ? streams[i] >= 0 : streams[i] > streams[i - 1]),
                "stream {} of {} is kept as number {}", streams[i], streams_, i);
    for (auto& [module, kept] : kept_)
      if (streams[i] != to && kept.length > 0)
        ops::copy(stream, kept.rows(streams[i], kept.first, kept.length),
                  kept.rows(to, kept.first, kept.length));
  }
  streams_ = std::ssize(streams);
}

Sequence StreamState::next(std::int64_t tokens) {
  return {.batch = streams_, .tokens = tokens, .first_position = seen_, .state = this};
}

bool StreamState::counts_on_device() const {
  return !endless_ && std::ranges::all_of(kept_, [](const auto& entry) {
    const Track& track = entry.second.track;
    return track.counts_on_device && track.chunk == 0 && track.zeros == 0;
  });
}

Sequence StreamState::recorded(const std::int32_t* seen) {
  return {.batch = streams_, .tokens = 1, .first_position_on_device = seen, .state = this};
}

void StreamState::replayed() {
  ++seen_;
  for (auto& [module, kept] : kept_) {
    CHOIR_CHECK(kept.length < kept.track.most, "a row behind {} in a track of {}", kept.length,
                kept.track.most);
    ++kept.length, ++kept.seen;
  }
}

StreamState::Rows StreamState::append_where_the_device_says(const Pass& pass, const Kept& kept,
                                                            const ops::RowBlock& from) const {
  ops::copy_rows(pass.stream(), kept.memory.dtype, streams_, kept.track.width, from,
                 {kept.memory.data, kept.stride()}, pass.sequence().first_position_on_device);
  return {kept.rows(0, 0, kept.track.most), kept.stride()};
}

StreamState::Rows StreamState::append(const Pass& pass, const void* module,
                                      const ops::RowBlock& from) {
  Kept& kept = kept_.at(module);
  if (pass.sequence().first_position_on_device)
    return append_where_the_device_says(pass, kept, from);
  const Track& track = kept.track;
  const std::int64_t count = pass.sequence().tokens;
  CHOIR_CHECK(pass.sequence().batch == streams_ && kept.seen == seen_,
              "positions from {} on of {} streams for a module that has seen {} of {}", seen_,
              pass.sequence().batch, kept.seen, streams_);
  const bool slides = track.chunk > 0;
  const std::int64_t before = slides ? std::min(kept.length, track.most) : kept.length;
  CHOIR_CHECK(slides ? count <= track.chunk : before + count <= track.most,
              "{} rows behind {} in a track of {} and chunks of {}", count, before, track.most,
              track.chunk);
  const std::int64_t rows = kept.memory.shape[1];
  const std::int64_t oldest = kept.first + kept.length - before;
  kept.first = oldest + before + count > rows ? 0 : oldest;
  const std::size_t bytes =
      static_cast<std::size_t>(count * from.stride) * size_of(kept.memory.dtype);
  for (std::int64_t b = 0; b < streams_; ++b) {
    if (kept.first != oldest && before > 0)
      ops::copy(pass.stream(), kept.rows(b, oldest, before), kept.rows(b, 0, before));
    ops::copy_rows(
        pass.stream(), kept.memory.dtype, count, track.width,
        {static_cast<std::byte*>(from.data) + static_cast<std::size_t>(b) * bytes, from.stride},
        {kept.rows(b, kept.first + before, count).data, track.width});
  }
  kept.length = before + count;
  kept.seen += count;
  return {kept.rows(0, kept.first, kept.length), kept.stride()};
}

}  // namespace choir
