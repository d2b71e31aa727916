#pragma once
// Steps of an optimizer on tiny models, against losses and norms of gradients of other programs.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <utility>

#include "choir/run/model_instance.hpp"
#include "src/optim/optimizer.hpp"

namespace choir::test {

/// Updates with the betas of all golden numbers, 0.9 and 0.95, without clipping.
class GoldenUpdates {
 public:
  static UpdateSettings settings(double weight_decay) {
    return {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = weight_decay};
  }
  GoldenUpdates(ModelInstance& instance, Device& device, UpdateSettings settings)
      : instance_(instance), optimizer_(instance.storage(), device, std::move(settings), 7) {}

  /// The update with this number, from 1 on.
  void step(double learning_rate, int number) {
    const ops::StepControl control{.learning_rate = learning_rate,
                                   .apply = 1,
                                   .gradient_factor = 1,
                                   .correction1 = 1 - std::pow(0.9, number),
                                   .correction2 = 1 - std::pow(0.95, number),
                                   .updates = static_cast<double>(number)};
    optimizer_.prepare(instance_.stream(), {.control = &control});
    optimizer_.step(instance_.stream(), &control);
  }

 private:
  ModelInstance& instance_;
  Optimizer optimizer_;
};

/// Takes five steps. `losses` are those before each step and after the last, and `norms` those of
/// the gradients; loss() of the model computes both.
template <class Model>
void expect_five_steps(Model& model, std::span<const double> losses,
                       std::span<const double> norms) {
  ASSERT_EQ(losses.size(), 6U);
  ASSERT_EQ(norms.size(), 5U);
  for (int step = 0; step < 5; ++step) {
    const auto at = static_cast<std::size_t>(step);
    EXPECT_NEAR(model.loss(), losses[at], 1e-10) << step;
    EXPECT_NEAR(model.gradient_norm(), norms[at], 1e-10) << step;
    model.step(step + 1);
  }
  EXPECT_NEAR(model.loss(), losses.back(), 1e-10);
}

}  // namespace choir::test
