#pragma once
// The memory plan of a stream of sound: silence is streamed on the null device, and the plan is the
// memory that this used.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "choir/infer/model_instance.hpp"

namespace choir {

struct StreamPlan {
  std::size_t arena_bytes = 0;
  std::vector<std::size_t> requests;  ///< see Arena::requests
  std::size_t total_bytes = 0;        ///< with parameters
};

/// Local. The memory that `instance` has used until now. DeckError if it exceeds `budget` bytes;
/// `what` names the user of the memory, "a stream".
StreamPlan measured_plan(ModelInstance& instance, double budget, const std::string& what);

/// Local. Streams a number of samples of silence, chunk by chunk, to its end.
template <class Stream>
void stream_silence(Stream& stream, std::int64_t samples) {
  stream.begin();
  for (;;) {
    const std::vector<std::int16_t> silence(
        static_cast<std::size_t>(std::min(samples, stream.room())));
    stream.push(silence);
    samples -= std::ssize(silence);
    if (samples == 0) stream.end();
    if (!stream.ready()) return;
    stream.next();
  }
}

/// Local. Streams recordings that end with each number of frames in a chunk, both in the first
/// chunk and when all caches are full; none has more than `most_frames`.
template <class Stream>
void rehearse(Stream& stream, std::int64_t most_frames = std::numeric_limits<std::int64_t>::max()) {
  const auto& chunks = stream.chunks();
  const std::int64_t warm = (chunks.past / chunks.frames + chunks.overlap) * chunks.frames;
  for (const std::int64_t before : {std::int64_t{0}, warm})
    for (std::int64_t frames = chunks.frames; frames > 0; --frames)
      stream_silence(stream, chunks.samples_of(std::min(before + frames, most_frames)));
}

}  // namespace choir
