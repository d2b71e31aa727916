#pragma once
// The report of a run before its first step: one screen on the console, everything in start.txt,
// and the start record of metrics.jsonl.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/run/step_plan.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/step/engine.hpp"

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
/// The decay of optimizer.schedule = wsd, which must have one.
std::string decay_line(const Deck& deck, const LrSchedule& schedule);
/// A sentence if the ranks of this host have more threads than cores; "" otherwise. Collective over
/// the node.
std::string shared_cores_note(Communicator& node);
/// The memory that the fullest rank needs and the memory available. Collective.
std::string memory_line(const StepPlan& plan, Mesh& mesh, const Device& device);
std::string transport_line(const std::vector<AxisSpeed>& speeds);
/// `validates`: there are validation data.
std::string saves_line(const Deck& deck, bool validates);
/// A sentence for a run that asks for evaluations but has no validation data: which data to name,
/// if they lie beside those of training. "" for synthetic data. Local; looks at the file system.
std::string unevaluated_note(const Deck& deck);
/// The sentence about a run that has done all steps of its deck.
std::string complete_line(std::int64_t step, const Deck& deck);

/// The size of a checkpoint, and the space on the file system of the run.
struct CheckpointRoom {
  bool known = false;   ///< false for runs that do not save, and in pipelines, where no rank knows
                        ///< the tensors of the other stages
  double bytes = 0;     ///< of a checkpoint
  double reserved = 0;  ///< by a save
  int beside = 0;       ///< further checkpoints that will stand there while one is written
  double free = 0;
  std::string folder{};  ///< of the run, or the nearest one above it that exists
  /// A sentence if saves would fail; "" otherwise.
  std::string warning() const;
};
/// Local.
CheckpointRoom checkpoint_room(const RunDirectory& directory, Engine& engine, const Deck& deck);
std::string run_line(const RunDirectory& directory);

/// "[device='cpu'][rank=2/3][local_rank=2/3][node=0/0] host ..." for this rank, with its GPU.
/// Local.
std::string who_am_i(Mesh& mesh, const Device& device);

/// The names and values of the dist_info block of the ALCF tutorial. `device_reason`: as in
/// Workplace. Collective over the world.
using DistInfo = std::vector<std::pair<std::string, std::string>>;
DistInfo dist_info(Mesh& mesh, const Device& device, const std::string& device_reason);
/// The block, "dist_info:" and a line for each name.
std::string text_of(const DistInfo& info);

/// The transport and the speed of each axis.
std::string transport_report(const Mesh& mesh, const std::vector<AxisSpeed>& speeds);

/// Parameters, tokens per iteration, module tree. Local.
std::string model_report(Engine& engine);
/// One line: the state that parallel.zero shards and over which ranks, and the bytes that a rank
/// moves per step.
std::string zero_report(Engine& engine);
/// One line: the state that parallel.offload keeps and where, or that it is ignored, and the bytes
/// moved per step.
std::string offload_report(Engine& engine);

/// The plan of this rank with its exact arena, and the rank with the largest plan. Collective over
/// `world`.
std::string memory_report(const StepPlan& plan, Engine& engine);

/// The contents of each stage, the order in which the stages work, and how long they would wait for
/// each other. The bubble is simulated from the FLOPs of each piece, with messages that take no
/// time. Empty for one stage. Pure and local.
std::string pipeline_report(const EngineOptions& options, int stages);

/// Fields of the start record that are not in the mesh or the plan.
struct StartFacts {
  std::int64_t step = 0;  ///< steps done when the run starts
  std::string device;     ///< description
  std::int64_t parameters = 0;
  std::int64_t resident_before = 0;  ///< bytes of this process before the model is built
  std::string mfu_peak;              ///< "12.3 TFLOP/s: ...", of which mfu is a percentage
  DistInfo dist_info;
};

/// The first line of metrics.jsonl, and one more for every continuation, so that the run directory
/// explains itself. Returns the record on rank 0, "" elsewhere. Collective over the world of
/// `mesh`. One JSON object, with the memory of rank 0:
/// {"event":"start","step":0,"time":...,"layout":{"order":"tp-cp-dp-pp","tp":1,"cp":1,"dp":2,
/// "pp":1},"ranks":[{"node":0,"host":"a","threads":4,"planned":BYTES}, ...],"memory":[{"name":
/// "parameters","bytes":...,"place":"device"}, ...],"work":[{"phase":"forward","flops":...,
/// "bytes":...}, ...],"provenance":{...}, ...}
std::string start_record(const StartFacts& facts, Mesh& mesh, const StepPlan& plan);

}  // namespace choir
