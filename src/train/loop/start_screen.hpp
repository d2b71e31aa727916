#pragma once
// The report of a run before its first step: one screen on the console, everything in start.txt.
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
  /// Adds a line to the screen, wrapped if it is too long.
  void show(std::string_view label, std::string_view text);
  /// Adds text only to start.txt.
  void add(std::string_view text);

  const std::string& screen() const { return screen_; }
  /// The whole text, starting with the screen.
  std::string everything() const { return screen_ + "\n" + details_; }

 private:
  std::string screen_, details_;
};

// The lines of the screen.

/// Collective. "2 on 1 node (vm), 1 thread each, cpu (AVX-512)".
std::string ranks_line(Mesh& mesh, const Device& device);
/// The first `most` lines of `text`, and the number of further lines.
std::string first_lines(const std::string& text, std::size_t most);
std::string model_line(Engine& engine);
std::string batch_line(Engine& engine);
/// `first_step` is the next step.
std::string training_line(const Deck& deck, const EngineOptions& options, std::int64_t first_step);
/// The memory that the fullest rank needs and the memory available. Collective.
std::string memory_line(const StepPlan& plan, Mesh& mesh, const Device& device);
std::string transport_line(const std::vector<AxisSpeed>& speeds);
std::string saves_line(const Deck& deck);
std::string run_line(const RunDirectory& directory);

}  // namespace choir
