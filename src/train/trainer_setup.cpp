// Trainer: from a deck to a model ready for its first step.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/comm/agreement.hpp"
#include "choir/comm/gather_text.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/process.hpp"
#include "choir/device/cuda.hpp"
#include "choir/ops/ceiling.hpp"
#include "choir/train/engine/run_setup.hpp"
#include "choir/train/log/layout_report.hpp"
#include "choir/train/log/pipeline_report.hpp"
#include "choir/train/log/start_record.hpp"
#include "choir/train/log/startup_report.hpp"
#include "choir/train/open_training_data.hpp"
#include "choir/train/save/async_choice.hpp"
#include "choir/train/save/warm_start.hpp"
#include "choir/train/trainer.hpp"

namespace choir {
namespace {

constexpr double kProgressInterval = 60;  // seconds between two of its lines in a log

}  // namespace

Trainer::Trainer(Deck deck, const Workplace& place, Logger& log, double started)
    : deck_(std::move(deck)),
      mesh_(*place.mesh),
      device_(*place.device),
      device_reason_(place.device_reason),
      log_(log),
      started_(started),
      directory_(deck_.run.dir),
      faults_(deck_, mesh_.rank()),
      stop_(deck_.run.walltime, deck_.run.walltime_margin,
            mesh_.rank() == 0 ? directory_.stop_file() : ""),
      watch_(deck_, mesh_, directory_.path()),
      progress_line_(log_, "training", kProgressInterval),
      trace_(profile_range(deck_.train.profile).first, profile_range(deck_.train.profile).last) {
  together(mesh_.world(), [&] {
    batch_ = resolve_batch(deck_, mesh_.along(Axis::data).size());
    Sharding::group_size(mesh_, zero_of(deck_));  // refused before anything is started
    faults_.require_ranks(mesh_.world().size());
  });
  open_run();
  build();
  resume();
  clock_.listen([this](Phase ended, double start, double end, Phase next) {
    trace_.span(name_of(ended), start, end);
    watch_.span(ended, start, end);
    // A stage of a pipeline says more: which action of which micro-batch it is at.
    std::string_view doing = engine_->doing();
    char text[64];
    if (doing.empty()) {
      const auto written =
          fmt::format_to_n(text, sizeof text, "step {}: {}", progress_.step + 1, name_of(next));
      doing = {text, std::min(written.size, sizeof text)};
    }
    watch_.step(doing, progress_.step - first_step_);
    faults_.in_phase(progress_.step + 1, name_of(next));
  });
}

void Trainer::open_run() {
  watch_.start("start");
  together(mesh_.world(), [&] {
    if (mesh_.rank() != 0) return;
    directory_.create();
    log_.to_file(directory_.log());
    faults_.damage_data();
  });
  for (const std::string& line : gather_texts(mesh_.world(), who_am_i(mesh_, device_)))
    log_.plain(line);
  log_.plain(dist_info(mesh_, device_, device_reason_));
  log_.plain(transport_report(mesh_, device_));
  data_ = open_training_data(deck_, batch_, mesh_, log_);
  together(mesh_.world(),
           [&] { resolve_vocabulary(deck_, data_->vocab_size(), "the training data"); });
  log_.plain(deck_listing(deck_));
  log_.plain(data_->to_string());
}

void Trainer::build() {
  resident_before_ = resident_bytes();
  const bool samples = deck_.eval.sample_tokens > 0 && !deck_.model.speech();
  EngineOptions options = engine_options(deck_, batch_);
  options.shapes = data_->shapes();
  options.evaluation_shapes = data_->validation_shapes();
  together(mesh_.world(), [&] {
    plan_ =
        plan_step(options, mesh_.layout(), mesh_.rank(), mesh_.node().size(), samples, &device_);
    require_memory(plan_, mesh_.node().size(), device_);
  });
  std::string waits;
  const bool async = choose_async(deck_, plan_, mesh_, device_, waits);
  if (async) add_snapshot(plan_.memory, plan_);
  options.arena_requests = plan_.arena_requests;
  options.watchdog = &watch_.dog();
  if (faults_.spoils_gradients()) {
    options.cuda_graph = false;
    options.spoil_gradients = [this](const Stream& stream, const Bucket& bucket) {
      faults_.spoil_gradients(queued() + 1, stream, bucket);
    };
  }
  engine_ = std::make_unique<Engine>(options, device_, mesh_, plan_.arena_bytes);
  together(mesh_.world(), [&] { faults_.require_parameters(engine_->instance()); });
  log_.plain(model_report(*engine_));
  log_.plain(zero_report(*engine_));
  log_.plain(offload_report(*engine_));
  if (mesh_.layout().size(Axis::pipeline) > 1)
    log_.plain(pipeline_report(options, mesh_.layout().size(Axis::pipeline)));
  log_.plain(memory_report(plan_, mesh_.world()));
  log_.plain(layout_report(layout_facts(mesh_, plan_.traffic)));
  if (!waits.empty() && mesh_.rank() == 0) log_.warn("{}", waits);
  const auto record = [this](const std::string& json) {
    if (!metrics_file_.write(json))
      log_.error("cannot write {}: is the disk full? training goes on", directory_.metrics());
  };
  checkpointer_ = std::make_unique<Checkpointer>(
      deck_, directory_.checkpoints(), *engine_, progress_, faults_, log_,
      Checkpointer::Options{.async = async,
                            .snapshot_bytes = plan_.snapshot_bytes,
                            .record = record,
                            .enter = [this](std::string_view phase) { watch_.save(phase); }});
  // All ranks at once, as they will compute.
  mesh_.world().barrier();
  const DType compute = options.precision.compute;
  const cuda::Card* card = cuda::card_of(device_);
  const bool published = card && size_of(compute) == 2 && card->peak_bf16_flops > 0;
  peak_flops_ =
      published ? card->peak_bf16_flops : ops::measure_gemm(engine_->instance().stream(), compute);
  mesh_.world().all_reduce(&peak_flops_, 1, DType::f64, ReduceOp::sum);
  const std::string source = published
                                 ? fmt::format("the dense rate of {} by its clock", card->name)
                                 : fmt::format("a {} product of {}^3, just now", name_of(compute),
                                               ops::large_product(device_.kind()));
  log_.plain(metrics_legend(fmt::format("peak {:.3f} TFLOP/s: {}, on all {} ranks",
                                        peak_flops_ / 1e12, source, mesh_.world().size())));
}

void Trainer::resume() {
  watch_.start("resume");
  if (!checkpointer_->restore(data_->vocab_hash())) {
    engine_->instance().initialise(engine_->options().seed);
    if (!deck_.checkpoint.init_from.empty())
      log_.plain(warm_start(engine_->instance(), deck_.checkpoint).to_string());
  }
  require_equal_parameters(*engine_, "parameters at the start");
  first_step_ = progress_.step;
  checkpointer_->begin();
  together(mesh_.world(), [&] { data_->require_resumable(progress_.consumed_samples); });
  together(mesh_.world(), [&] {
    if (mesh_.rank() != 0) return;
    if (deck_.checkpoint.resume != "auto" && checkpointer_->newest_step() > progress_.step)
      log_.warn("checkpoint.resume is \"{}\": the later checkpoints of this run were moved to {}",
                deck_.checkpoint.resume, directory_.set_aside());
    directory_.write_deck(resolved_json(deck_));
    metrics_file_ = MetricsFile(directory_.metrics(), progress_.step);
    if (deck_.log.tensorboard)
      tensorboard_ = TensorboardFile(directory_.tensorboard(), progress_.step + 1);
  });
  const std::string start = start_record({.step = progress_.step,
                                          .device = device_.description(),
                                          .parameters = engine_->instance().parameters().count(),
                                          .resident_before = resident_before_},
                                         mesh_, plan_);
  if (mesh_.rank() == 0) metrics_file_.write(start);
  data_->start_training(engine_->instance().storage().sharding(), batch_.accum,
                        {.step = progress_.step,
                         .consumed_samples = progress_.consumed_samples,
                         .more = progress_.data});
  log_.info("ready after {}", format_duration(now_seconds() - started_));
  progress_line_.restart();
}

}  // namespace choir
