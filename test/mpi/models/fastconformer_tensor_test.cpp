// Tests of a FastConformer whose layers are shared by ranks, with and without sequence parallelism,
// against one rank that each process runs alone.
#include "test/support/mpi_test.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"

namespace choir::test {
namespace {

struct Outcome {
  std::vector<double> losses, logits, gradients;
};

/// All logical gradients; gradients that ranks of the tensor axis hold in part are summed.
std::vector<double> logical_gradients(TinyModel& model, Communicator* ranks) {
  std::vector<double> all;
  for (const Parameter& p : model.parameters().parameters()) {
    std::vector<bool> partial(static_cast<std::size_t>(p.local_count()));
    for (const PartialRun& run : partial_runs(p))
      for (std::int64_t i = 0; i < run.count; ++i)
        partial[static_cast<std::size_t>(run.local + i)] = true;
    std::vector<double> logical(static_cast<std::size_t>(p.count()), 0.0);
    for (const ShardRun& run : shard_runs(p))
      for (std::int64_t i = 0; i < run.count; ++i)
        if (run.owned || partial[static_cast<std::size_t>(run.local + i)])
          logical[static_cast<std::size_t>(run.logical + i)] =
              p.gradient.as<double>()[run.local + i];
    if (ranks) ranks->all_reduce(logical.data(), logical.size(), DType::f64, ReduceOp::sum);
    all.insert(all.end(), logical.begin(), logical.end());
  }
  return all;
}

Outcome run(const FastConformerConfig& c, const TensorAxis& tensor) {
  TinyModel model(c, "fp64", {}, tensor);
  // 3 utterances of 10 frames: under sequence parallelism no share consists of whole utterances.
  const SpeechBatch speech(c, {3, 8, 5}, {3000, 2100, 900});
  Outcome outcome;
  const auto take = [](const Tensor& x) {
    return std::vector<double>(x.as<double>(), x.as<double>() + x.count());
  };
  outcome.logits = take(model.forward(Mode::generate, speech.batch));
  outcome.losses = take(model.forward(Mode::train, speech.batch));
  model.backward(speech.batch);
  outcome.gradients = logical_gradients(model, tensor.communicator);
  return outcome;
}

/// Largest difference, divided by the largest value.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 1, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i]));
    difference = std::max(difference, std::isfinite(b[i]) ? std::abs(a[i] - b[i]) : INFINITY);
  }
  return difference / most;
}

void expect_equal(const FastConformerConfig& c, const std::string& what) {
  const Outcome one = run(c, {});
  const auto mesh = Mesh::over_world(Layout(world_size(), 1, 1, 1), Transport::automatic);
  for (const bool sequence : {false, true}) {
    const Outcome many = run(
        c, {.communicator = &mesh->along(Axis::tensor), .sequence = sequence && world_size() > 1});
    EXPECT_ALL_RANKS(relative_difference(one.losses, many.losses) <= 1e-12)
        << what << " " << sequence;
    EXPECT_ALL_RANKS(relative_difference(one.gradients, many.gradients) <= 1e-12)
        << what << " " << sequence << " " << relative_difference(one.gradients, many.gradients);
    // In generation rows are not shared: padding is computed in the same way, too.
    EXPECT_ALL_RANKS(relative_difference(one.logits, many.logits) <= 1e-12)
        << what << " " << sequence;
  }
}

TEST(FastConformerTensor, EqualsOneRank) {
  if (4 % world_size() != 0) GTEST_SKIP() << "4 heads";
  FastConformerConfig c = tiny_conformer();
  expect_equal(c, "plain");
  c.dropout = 0.2, c.stochastic_depth = 0.5;
  c.augment = {.time_masks = 1, .frequency_masks = 1, .time_width = 4, .frequency_width = 4};
  expect_equal(c, "random");
  c.recompute = Recompute::selective;
  expect_equal(c, "selective");
  c.recompute = Recompute::full, c.causal = true, c.normalise = false;
  c.context_style = ContextStyle::chunked, c.left_context = 4, c.right_context = 1;
  expect_equal(c, "full, causal");
}

}  // namespace
}  // namespace choir::test
