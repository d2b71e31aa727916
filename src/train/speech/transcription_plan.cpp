#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/device/cuda.hpp"
#include "choir/device/null_device.hpp"
#include "choir/model/host_batch.hpp"
#include "choir/ops/relative_attention.hpp"
#include "choir/train/engine/step_plan.hpp"
#include "choir/train/speech/transcriber.hpp"

namespace choir {
namespace {

/// Frames that fill a processor, and a card: larger batches are no faster.
constexpr std::int64_t kFramesOfCpu = 2048, kFramesOfCard = 65536;

/// The model on the null device: what passes of a size need.
class NullModel {
 public:
  NullModel(const ModelInstance::Options& options, const Layout& layout, int rank,
            const Device* target)
      : config_(options.model.fastconformer()),
        device_(target ? NullDevice(*target) : NullDevice()),
        mesh_(Mesh::planned(layout, rank, 1)),
        instance_(options, device_, *mesh_, Arena::kUnbounded) {}

  /// Of all passes so far and one of `rows` windows of `frames`: everything, in bytes.
  std::size_t need(std::int64_t rows, std::int64_t frames) {
    const BatchShape shape{.samples = rows,
                           .audio_samples = TranscriptionPlan::samples_of(config_, frames),
                           .labels = 1};
    instance_.forward(Mode::generate, HostBatch(config_, shape).batch);
    return total();
  }
  /// Of all passes so far.
  std::size_t total() const {
    MemoryPlan plan;
    instance_.add_to(plan);
    return plan.total();
  }
  std::size_t arena_peak() { return instance_.arena().peak(); }

 private:
  FastConformerConfig config_;
  NullDevice device_;
  std::unique_ptr<Mesh> mesh_;
  ModelInstance instance_;
};

std::int64_t frames_in(const FastConformerConfig& config, double seconds) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(seconds / config.seconds_per_frame()));
}

/// The most frames of one window that fit, as far as anybody asks for; 0: not even the first.
std::int64_t most_frames(NullModel& model, std::int64_t first, std::int64_t last, double budget) {
  std::int64_t fits = 0;
  for (std::int64_t frames = first;; frames = std::min(last, frames + (frames + 3) / 4)) {
    if (static_cast<double>(model.need(1, frames)) > budget) return fits;
    fits = frames;
    if (frames == last) return fits;
  }
}

/// Batches of so many frames at most, or of one window.
std::vector<BatchLimit> limits_of(std::int64_t window, std::int64_t area, std::int64_t batch) {
  std::vector<BatchLimit> limits{{1, window}};
  for (std::int64_t rows = 2; rows <= std::min(batch, area); ++rows)
    limits.push_back({rows, std::min(window, area / rows)});
  return limits;
}

}  // namespace

std::int64_t TranscriptionPlan::rows_for(std::int64_t frames) const {
  std::int64_t rows = 1;
  for (const BatchLimit& limit : limits)
    if (frames <= limit.frames) rows = std::max(rows, limit.rows);
  return rows;
}

TranscriptionPlan plan_transcription(const ModelInstance::Options& options, const Layout& layout,
                                     int rank, const TranscriptionOptions& request, double budget,
                                     const Device* target) {
  const FastConformerConfig& config = options.model.fastconformer();
  const std::int64_t smallest = plan_windows(config, 1, 1).frames;
  constexpr std::int64_t kMost = ops::kMostRelativeFrames;
  const std::int64_t wanted = std::min(kMost, frames_in(config, request.window_seconds));
  const std::int64_t largest = plan_windows(config, wanted, kMost).frames;
  TranscriptionPlan plan{.align = reach_of(config).align};
  {
    NullModel model(options, layout, rank, target);
    const std::int64_t most =
        most_frames(model, std::min(smallest, largest), std::max(smallest, largest), budget);
    if (most == 0)
      throw DeckError(
          fmt::format("out of memory: a window of {:.1f} s needs {} with the parameters, {} are "
                      "allowed",
                      static_cast<double>(smallest) * config.seconds_per_frame(),
                      format_bytes(static_cast<double>(model.total())), format_bytes(budget)),
          "raise --memory, or share the model by --tensor");
    plan.windows = plan_windows(config, wanted, most);
  }
  const bool card = target && target->plans_for() == DeviceKind::cuda;
  for (std::int64_t area = std::max(plan.windows.frames, card ? kFramesOfCard : kFramesOfCpu);;
       area /= 2) {
    NullModel model(options, layout, rank, target);
    plan.limits = limits_of(plan.windows.frames, area, request.batch);
    for (const BatchLimit& limit : plan.limits)
      plan.total_bytes = model.need(limit.rows, limit.frames);
    plan.arena_bytes = model.arena_peak();
    if (plan.limits.size() == 1 || static_cast<double>(plan.total_bytes) <= budget) return plan;
  }
}

double default_transcription_memory(const Device& device, int ranks_per_node) {
  if (const cuda::Card* card = cuda::card_of(device))
    return 0.5 * static_cast<double>(card->memory);
  return 0.25 * node_memory() / ranks_per_node;
}

}  // namespace choir
