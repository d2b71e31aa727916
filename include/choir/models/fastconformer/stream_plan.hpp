#pragma once
// The memory that a stream of sound needs: silence is streamed on the null device, and what that
// took is the plan.
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

/// Local. What `instance` took until now. DeckError when that is more than `budget` bytes; `what`
/// needs it, "a stream".
StreamPlan measured_plan(ModelInstance& instance, double budget, const std::string& what);

/// Local. Silence of so many samples, chunk by chunk, to its end.
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

/// Local. Recordings that end with each number of frames in a chunk: in the first one, and where
/// all is kept that ever is; none of more than `most_frames`.
template <class Stream>
void rehearse(Stream& stream, std::int64_t most_frames = std::numeric_limits<std::int64_t>::max()) {
  const auto& chunks = stream.chunks();
  const std::int64_t warm = (chunks.past / chunks.frames + chunks.overlap) * chunks.frames;
  for (const std::int64_t before : {std::int64_t{0}, warm})
    for (std::int64_t frames = chunks.frames; frames > 0; --frames)
      stream_silence(stream, chunks.samples_of(std::min(before + frames, most_frames)));
}

}  // namespace choir
