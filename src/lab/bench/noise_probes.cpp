#include "src/lab/bench/noise_probes.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "choir/core/error.hpp"

namespace choir {
namespace {

// The gradient norm of one micro-batch: all micro-batches of the step are this one.
double small_batch_norm(const NoiseProbes& p, std::int64_t step) {
  std::array<std::vector<std::byte>, ModelBatch::kMostFields> kept;
  ModelBatch one;
  for (std::int64_t j = 0; j < p.batch.accum;
       ++j) {  // all are consumed, so that the ranks stay in step
    const ModelBatch batch = p.data.micro_batch(step, j);
    if (j > 0) continue;
    one = batch;
    for (std::size_t i = 0; i < one.fields().size(); ++i) {
      TensorView& view = one.fields()[i].view;
      kept[i].resize(view.bytes());
      std::memcpy(kept[i].data(), view.data, view.bytes());
      view.data = kept[i].data();
      p.mesh.host_along(Axis::data).broadcast(view.data, view.bytes(), 0);
    }
  }
  p.engine.step(
      step, [&](std::int64_t) { return one; }, p.data.targets(step), p.clock);
  return p.engine.finish(p.clock).grad_norm;
}

}  // namespace

void require_probes(const Deck& deck, const BatchSizes& batch, bool communicate) {
  const char* flag = "--gradient-noise compares a micro-batch with the global batch, but ";
  if (!deck.family().fixed_shape())
    throw DeckError(std::string(flag) + "the bench of a speech deck uses synthetic utterances",
                    "use a token deck");
  if (!communicate)
    throw DeckError(std::string(flag) + "--no-comm disables communication",
                    "omit one of the two options");
  if (batch.global == batch.micro)
    throw DeckError(std::string(flag) + "this step has only one micro-batch",
                    "set train.grad_accum to 2 or more, or start more ranks");
}

LrSchedule standing_after(LrSchedule schedule) {
  using Kind = LrSchedule::Kind;
  if (schedule.kind == Kind::constant || schedule.kind == Kind::inverse_sqrt)
    schedule.kind = Kind::cosine;
  schedule.floor = 0;
  return schedule;
}

GradientNoise probe_gradient_noise(const NoiseProbes& p) {
  std::vector<NoiseProbe> probes;
  const LrSchedule& schedule = p.engine.options().schedule;
  std::int64_t step = std::max(p.steps_before, schedule.decay_steps);
  CHOIR_CHECK(schedule.at(step) == 0, "the learning rate is not 0");
  for (int i = 0; i < p.pairs; ++i) {
    const double small = small_batch_norm(p, step++);
    p.engine.step(
        step, [&](std::int64_t j) { return p.data.micro_batch(step, j); }, p.data.targets(step),
        p.clock);
    const double large = p.engine.finish(p.clock).grad_norm;
    ++step;
    probes.push_back({small * small, large * large});
  }
  GradientNoise noise = estimate_noise(probes, p.batch.micro, p.batch.global);
  noise.after_steps = p.steps_before;
  return noise;
}

}  // namespace choir
