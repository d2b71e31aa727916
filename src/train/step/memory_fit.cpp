#include "src/train/step/memory_fit.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/models/family.hpp"
#include "kernels/gemm/packing_memory.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cuda.hpp"

namespace choir {

std::string HeadMemory::to_string() const {
  if (rows == 0) return {};
  return rows < all_rows ? fmt::format("head: {} of {} rows at a time, {} of logits", rows,
                                       all_rows, format_bytes(bytes))
                         : fmt::format("head: all {} rows at once, {} of logits", all_rows,
                                       format_bytes(bytes));
}

HeadMemory head_memory(const EngineOptions& options, const Layout& layout) {
  const DType logits = options.precision.compute;
  const HeadChunk chunk = options.model.family().head_chunk(options.model, logits);
  if (chunk.vocabulary == 0) return {};
  HeadMemory head;
  for (const BatchShape& shape : shapes_of(options))
    head.all_rows = std::max(head.all_rows, shape.samples * shape.tokens);
  const std::int64_t contexts = layout.size(Axis::context), tensors = layout.size(Axis::tensor);
  head.all_rows = (head.all_rows + contexts - 1) / contexts;
  head.rows = chunk.rows == 0 ? head.all_rows : std::min(chunk.rows, head.all_rows);
  const std::int64_t columns = (chunk.vocabulary + tensors - 1) / tensors;
  head.bytes = static_cast<double>(head.rows * columns) * static_cast<double>(size_of(logits));
  return head;
}

double bytes_of_tiles(const EngineOptions& options, const Layout& layout) {
  const AttentionTiles tiles = options.model.family().attention_tiles(options.model);
  if (tiles.positions == 0) return 0;
  std::int64_t rows = 0;
  for (const BatchShape& shape : shapes_of(options))
    rows = std::max(rows, shape.samples * shape.tokens);
  const std::int64_t stages = layout.size(Axis::pipeline);
  const bool full = options.model.recompute() == Recompute::full;
  const std::int64_t layers = full ? 1 : (options.model.n_layer() + stages - 1) / stages;
  const DType type = options.precision.compute;
  const auto of_position =
      static_cast<double>(tiles.elements) * static_cast<double>(size_of(type)) +
      static_cast<double>(tiles.heads) * (type == DType::f64 ? sizeof(double) : sizeof(float));
  return static_cast<double>(rows * layers) * of_position /
         static_cast<double>(layout.size(Axis::tensor));
}

std::string tiles_text(const EngineOptions& options, const Layout& layout) {
  const double bytes = bytes_of_tiles(options, layout);
  if (bytes == 0) return {};
  return fmt::format(
      "attention: {} positions at a time, {} of a micro-batch are computed again instead of kept",
      options.model.family().attention_tiles(options.model).positions, format_bytes(bytes));
}

bool halve_head_chunk(EngineOptions& options, double excess, const Layout& layout) {
  constexpr std::int64_t kLeastRows = 128;
  const ModelFamily& family = options.model.family();
  const HeadChunk chunk = family.head_chunk(options.model, options.precision.compute);
  if (options.reproducible || !chunk.automatic || chunk.rows / 2 < kLeastRows) return false;
  // In backward a gradient may be beside the logits.
  if (excess > 2 * head_memory(options, layout).bytes) return false;
  family.limit_head_chunk(options.model, chunk.rows / 2);
  return true;
}

double excess_bytes(const StepPlan& plan, int ranks_per_node, const Device& device) {
  const auto ranks = static_cast<double>(ranks_per_node);
  const auto on_device = static_cast<double>(plan.memory.total());
  const auto on_host = static_cast<double>(plan.memory.total(MemoryPlace::host));
  if (cuda::card_of(device) != nullptr) return std::max(0.0, on_device - free_for_plans(device));
  return std::max(0.0, on_device + on_host - node_memory() / ranks);
}

StepPlan plan_in_memory(EngineOptions& options, Mesh& mesh, bool generate, const Device& device,
                        bool snapshot) {
  Communicator& world = mesh.world();
  const int on_node = mesh.node().size();
  for (;;) {
    StepPlan plan;
    double excess = 0;
    together(world, [&] {
      plan = plan_step(options, mesh.layout(), mesh.rank(), on_node, generate, &device, snapshot);
      ops::add_packing(plan.memory, plan.products, device.plans_for());
      if (mesh.uses_nccl()) add_nccl(plan, mesh, mesh.device_transport(), *cuda::card_of(device));
      excess = excess_bytes(plan, on_node, device);
    });
    world.all_reduce(&excess, 1, DType::f64, ReduceOp::max);
    if (excess > 0 && halve_head_chunk(options, excess, mesh.layout())) continue;
    options.arena_requests = plan.arena_requests;
    return plan;
  }
}

}  // namespace choir
