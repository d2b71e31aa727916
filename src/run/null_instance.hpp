#pragma once
// A model on the null device with null communicators, and the plans of memory and work that it
// yields: the real work, run on it, uses as much as on the device that is planned for. Local, on
// any machine, for any rank of any layout.
#include <functional>
#include <memory>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/run/model_instance.hpp"
#include "src/device/null_device.hpp"
#include "src/run/step_plan.hpp"

namespace choir {

/// A null device that plans for a device like `target`; nullptr: for a CPU.
NullDevice null_device_for(const Device* target);

class NullInstance {
 public:
  /// `target` as for null_device_for().
  NullInstance(const ModelInstance::Options& options, const Layout& layout, int rank,
               const Device* target);

  ModelInstance& operator*() { return instance_; }
  ModelInstance* operator->() { return &instance_; }
  const ModelInstance* operator->() const { return &instance_; }

 private:
  NullDevice device_;
  std::unique_ptr<Mesh> mesh_;
  ModelInstance instance_;
};

/// Evaluates one batch of each shape.
void evaluate_shapes(ModelInstance& instance, const std::vector<BatchShape>& shapes);

/// The memory, the work and the traffic of a model that only evaluates batches of these shapes.
/// `target` as for null_device_for().
StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::vector<BatchShape>& shapes, const Device* target = nullptr);
/// The same for a model that only does this `work`.
StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::function<void(ModelInstance&)>& work,
                        const Device* target = nullptr);

}  // namespace choir
