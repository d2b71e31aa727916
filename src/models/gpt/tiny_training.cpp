#include "src/models/gpt/tiny_training.hpp"

#include "choir/core/philox.hpp"
#include "src/core/quantities.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/train/step/engine.hpp"

#include "src/train/step/step_planner.hpp"

namespace choir {
namespace {

/// Successive tokens differ by 3 modulo V, which a model of two layers learns in a few steps.
void fill_tokens(std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets,
                 std::int64_t first_sample, std::int64_t length, std::int32_t vocabulary) {
  const PhiloxKey key = philox_key(7, "doctor tokens");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t sample = first_sample + static_cast<std::int64_t>(i) / length;
    const auto start = philox_at(key, static_cast<std::uint64_t>(sample))[0];
    const auto at = static_cast<std::uint32_t>(static_cast<std::int64_t>(i) % length);
    const auto token = [&](std::uint32_t t) {
      return static_cast<std::int32_t>((start % 1000 + 3 * t) %
                                       static_cast<std::uint32_t>(vocabulary));
    };
    inputs[i] = token(at);
    targets[i] = token(at + 1);
  }
}

EngineOptions tiny_options() {
  EngineOptions options;
  options.model = GptConfig{.vocab_size = 64,
                            .block_size = 32,
                            .n_layer = 2,
                            .n_head = 2,
                            .n_kv_head = 2,
                            .n_embd = 64,
                            .ffn_width = 256};
  options.seed = 1;
  options.micro_batch_size = 8;
  options.schedule = {.kind = LrSchedule::Kind::constant, .peak = 5e-3};
  return options;
}

}  // namespace

TinyTraining train_tiny_gpt(Mesh& mesh) {
  const auto device = make_device(DeviceKind::cpu);
  const EngineOptions options = tiny_options();
  Communicator& data = mesh.along(Axis::data);
  const StepPlan plan = plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(), false);
  const double start = now_seconds();
  Engine engine(options, *device, mesh, plan.arena_bytes);
  engine.instance().initialise(options.seed);
  const std::int64_t tokens = options.micro_batch_size * options.model.as<GptConfig>().block_size;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(tokens)), targets(inputs.size());
  TinyTraining run;
  PhaseClock clock;
  for (std::int64_t step = 0; step < 20; ++step) {
    const std::int64_t first = engine.micro_batch_index(step, 0) * options.micro_batch_size;
    fill_tokens(inputs, targets, first, options.model.as<GptConfig>().block_size, 64);
    const ModelBatch batch =
        token_batch(options.micro_batch_size, {inputs.data(), DType::i32, {tokens}},
                    {targets.data(), DType::i32, {tokens}}, first);
    clock.begin();
    engine.step(
        step, [&](std::int64_t) { return batch; }, static_cast<double>(tokens * data.size()),
        clock);
    run.losses.push_back(engine.finish(clock).loss);
  }
  engine.instance().gatherer().complete_update();
  run.digests.resize(static_cast<std::size_t>(mesh.world().size()));
  run.digests[static_cast<std::size_t>(mesh.rank())] = engine.instance().storage().digest();
  mesh.world().all_gather(run.digests.data(), 1, DType::i64);
  run.seconds = now_seconds() - start;
  return run;
}

}  // namespace choir
