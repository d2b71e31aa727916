// What streaming needs, measured on the null device.
#include "choir/core/clock.hpp"
#include "choir/device/null_device.hpp"
#include "choir/train/speech/speech_stream.hpp"

namespace choir {
namespace {

/// Silence of so many samples, chunk by chunk, to its end.
void rehearse(SpeechStream& stream, std::int64_t samples) {
  stream.begin();
  std::vector<std::int16_t> silence;
  for (;;) {
    const std::int64_t count = std::min(samples, stream.room());
    silence.resize(static_cast<std::size_t>(count));
    stream.push(silence);
    samples -= count;
    if (samples == 0) stream.end();
    if (!stream.ready()) return;
    stream.next();
  }
}

}  // namespace

StreamPlan plan_stream(const ModelInstance::Options& options, const Layout& layout, int rank,
                       double budget, const Device* target) {
  NullDevice device = target ? NullDevice(*target) : NullDevice();
  const auto mesh = Mesh::planned(layout, rank, 1);
  ModelInstance instance(options, device, *mesh, Arena::kUnbounded);
  SpeechStream stream(instance);
  const SpeechChunks& chunks = stream.chunks();
  // Recordings that end with each number of frames in a chunk: in the first one, and where all is
  // kept that ever is.
  const std::int64_t warm = (chunks.past / chunks.frames + chunks.overlap) * chunks.frames;
  for (const std::int64_t before : {std::int64_t{0}, warm})
    for (std::int64_t frames = chunks.frames; frames > 0; --frames)
      rehearse(stream, chunks.samples_of(before + frames));
  MemoryPlan memory;
  instance.add_to(memory);
  if (static_cast<double>(memory.total()) > budget)
    throw DeckError(
        fmt::format("out of memory: a stream needs {} with the parameters, {} are allowed",
                    format_bytes(static_cast<double>(memory.total())), format_bytes(budget)),
        "raise --memory, or share the model by --tensor");
  return {.arena_bytes = instance.arena().peak(),
          .requests = instance.arena().requests(),
          .total_bytes = memory.total()};
}

}  // namespace choir
