// Tests of training in every kind of layout on the cuda device, staged and over NCCL, against one
// rank on the CPU; of replayed steps against queued ones; and of the plan against the memory in
// use.
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

using Way = DeviceTransport::Way;

constexpr int kLayoutSteps = 5;  // the first two are queued, the others recorded if possible

struct Case {
  const char* name;
  Layout layout;
  PipelineOptions pipeline{};
  int zero = 0, zero_group = ZeroOptions::kAll;
  Recompute recompute = Recompute::none;
};

// Tensor, context, data, pipeline.
const Layout kPipeline2(1, 1, 1, 2), kContext2(1, 2, 1, 1), kTensor2(2, 1, 1, 1),
    kData2(1, 1, 2, 1), kData4(1, 1, 4, 1), kDataContext(1, 2, 2, 1);
const PipelineOptions kOneFOneB{ScheduleKind::one_f_one_b, 1},
    kInterleaved{ScheduleKind::interleaved, 2}, kZb{ScheduleKind::zb_h1, 1};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"pipeline 1f1b", kPipeline2, kOneFOneB},
      {"pipeline interleaved", kPipeline2, kInterleaved},
      {"pipeline zb-h1", kPipeline2, kZb, 0, 0, Recompute::selective},
      {"context", kContext2},
      {"context, stage 3", kContext2, {}, 3, 0, Recompute::full},
      {"tensor", kTensor2},
      {"data, stage 1", kData2, {}, 1},
      {"data, stage 2", kData2, {}, 2},
      {"data, stage 3", kData2, {}, 3, 0, Recompute::full},
      {"data, stage 3, copies of two", kData4, {}, 3, 2},
      {"data and context, stage 2, a copy for each data rank", kDataContext, {}, 2, 1},
  };
  return all;
}

/// A layer for each piece of a pipeline, at least two; dropout. Every other case uses the model
/// with two K/V heads.
GptConfig model(const Case& c, bool llama) {
  GptConfig config = llama ? tiny_llama() : tiny_gpt();
  config.n_layer = 2 * c.pipeline.virtual_stages;
  config.dropout = 0.1;
  return config;
}

/// Number of micro-batches of all data ranks: two go through a pipeline.
int micro_batches(const Case& c) {
  return c.layout.size(Axis::pipeline) > 1 ? 2 * c.layout.size(Axis::data)
                                           : std::max(2, c.layout.size(Axis::data));
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::byte> masters;  ///< this rank's part
  std::string graph_use;
  bool as_planned = true;
};

bool same_plan(const MemoryPlan& planned, const MemoryPlan& used) {
  bool same = planned.entries.size() == used.entries.size();
  for (std::size_t i = 0; same && i < planned.entries.size(); ++i)
    same = planned.entries[i].name == used.entries[i].name &&
           planned.entries[i].bytes == used.entries[i].bytes;
  if (!same) std::cerr << planned.to_string() << "\n" << used.to_string() << "\n";
  return same;
}

Trained trained_in_layout(EngineRun& run) {
  Trained result;
  for (int i = 0; i < kLayoutSteps; ++i) {
    const StepResult step = run.step();
    result.losses.push_back(step.loss);
    result.norms.push_back(step.grad_norm);
  }
  ModelInstance& instance = run.engine().instance();
  for (const Bucket& bucket : instance.parameters().buckets()) {
    const TensorView own = instance.storage().masters(bucket);
    const std::size_t before = result.masters.size();
    result.masters.resize(before + own.bytes());
    if (own.bytes() > 0)
      instance.device().copy_to_host(result.masters.data() + before, own.data, own.bytes());
  }
  result.graph_use = run.engine().graph_use();
  result.as_planned = instance.arena().peak() == run.plan().arena_bytes &&
                      same_plan(run.plan().memory, run.engine().memory());
  return result;
}

Trained trained_in_layout(const Case& c, bool llama, Way way, bool graph) {
  auto device = make_device(DeviceKind::cuda);
  auto mesh = Mesh::over_world(c.layout, Transport::automatic);
  mesh->attach(*device, {.way = way,
                         .replica_groups = c.zero_group == ZeroOptions::kAll ? 0 : 2,
                         .nccl_library = nccl_library()});
  EngineOptions options =
      engine_options(model(c, llama), "fp32", micro_batches(c) / c.layout.size(Axis::data));
  options.model.as<GptConfig>().recompute = c.recompute;
  options.sequence = c.layout.size(Axis::tensor) > 1;
  options.pipeline = c.pipeline;
  options.zero.stage = c.zero, options.zero.group = c.zero_group;
  options.cuda_graph = graph;
  EngineRun run(options, *mesh, std::move(device));
  Trained result = trained_in_layout(run);
  run.end();
  mesh.reset();  // destroyed before its device
  return result;
}

TEST(DeviceLayouts, TrainAsOneRankOnTheCpu) {
  if (cuda::availability().cards.empty()) GTEST_SKIP() << "there is no GPU";
  if (nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() != 2 && world_size() != 4) GTEST_SKIP() << "needs two or four ranks";
  bool llama = true;
  for (const Case& c : cases()) {
    if (c.layout.ranks() != world_size()) continue;
    llama = !llama;
    SingleRank single;
    EngineRun alone(engine_options(model(c, llama), "fp32", micro_batches(c)), *single.mesh);
    const Trained one = trained_in_layout(alone);
    const Trained staged = trained_in_layout(c, llama, Way::staged, true);
    const Trained recorded = trained_in_layout(c, llama, Way::nccl, true);
    const Trained queued = trained_in_layout(c, llama, Way::nccl, false);
    for (const Trained* many : {&staged, &recorded}) {
      // f32 with another order of sums: some hundred roundings of 2^-24 in numbers near 3.
      EXPECT_ALL_RANKS(distance(one.losses, many->losses) <= 1e-4)
          << c.name << ": losses " << distance(one.losses, many->losses);
      EXPECT_ALL_RANKS(distance(one.norms, many->norms) <= 1e-4)
          << c.name << ": norms " << distance(one.norms, many->norms);
      EXPECT_ALL_RANKS(many->as_planned) << c.name;
    }
    EXPECT_ALL_RANKS(same_bits(queued.losses, recorded.losses)) << c.name;
    EXPECT_ALL_RANKS(same_bits(queued.norms, recorded.norms)) << c.name;
    EXPECT_ALL_RANKS(queued.masters == recorded.masters) << c.name;
    EXPECT_NE(recorded.graph_use.find("is recorded"), std::string::npos) << recorded.graph_use;
    EXPECT_EQ(queued.graph_use, "off");
    EXPECT_NE(staged.graph_use.find("'staged'"), std::string::npos) << staged.graph_use;
  }
}

}  // namespace
}  // namespace choir::test
