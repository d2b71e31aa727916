#pragma once
// What a run says before its first step: one screen of it on the console, all of it in start.txt.
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/step/engine.hpp"
#include "choir/train/step/step_plan.hpp"

namespace choir {

class StartScreen {
 public:
  /// A line of the screen, broken where it is too long.
  void show(std::string_view label, std::string_view text);
  /// For start.txt alone.
  void add(std::string_view text);

  const std::string& screen() const { return screen_; }
  /// All of it, the screen first.
  std::string everything() const { return screen_ + "\n" + details_; }

 private:
  std::string screen_, details_;
};

// What stands on the screen, a line each.

/// Collective. "2 on 1 node (vm), 1 thread each, cpu (AVX-512)".
std::string ranks_line(Mesh& mesh, const Device& device);
/// At most so many lines of `text`, and how many more there are.
std::string first_lines(const std::string& text, std::size_t most);
std::string model_line(Engine& engine);
std::string batch_line(Engine& engine);
/// `first_step`: the step that comes next.
std::string training_line(const Deck& deck, const EngineOptions& options, std::int64_t first_step);
/// Collective. What the fullest rank needs, and what there is.
std::string memory_line(const StepPlan& plan, Mesh& mesh, const Device& device);
std::string transport_line(const std::vector<AxisSpeed>& speeds);
std::string saves_line(const Deck& deck);
std::string run_line(const RunDirectory& directory);

}  // namespace choir
