#include "src/run/null_instance.hpp"

#include "choir/models/family.hpp"

namespace choir {

NullDevice null_device_for(const Device* target) {
  return target ? NullDevice(*target) : NullDevice();
}

NullInstance::NullInstance(const ModelInstance::Options& options, const Layout& layout, int rank,
                           const Device* target)
    : device_(null_device_for(target)),
      mesh_(Mesh::planned(layout, rank, 1)),
      instance_(options, device_, *mesh_, Arena::kUnbounded) {}

void evaluate_shapes(ModelInstance& instance, const std::vector<BatchShape>& shapes) {
  const ModelConfig& model = instance.options().model;
  for (const BatchShape& shape : shapes) {
    const HostBatch host(model, shape);
    model.family().evaluate_once(instance, host.batch);
  }
}

StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::vector<BatchShape>& shapes, const Device* target) {
  return plan_inference(
      options, layout, rank, [&](ModelInstance& instance) { evaluate_shapes(instance, shapes); },
      target);
}

StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::function<void(ModelInstance&)>& work, const Device* target) {
  NullInstance instance(options, layout, rank, target);
  work(*instance);
  StepPlan plan;
  plan.flops = instance->work().flops;
  plan.bytes = instance->work().bytes;
  instance->add_to(plan.memory);
  plan.arena_bytes = instance->arena().peak();
  return plan;
}

}  // namespace choir
