// A training run from its deck to its exit code: connects data, model, optimizer, communication and
// checkpoints.

#include "src/train/loop/train.hpp"
#include "src/core/quantities.hpp"

#include <omp.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mesh/device_choice.hpp"
#include "src/comm/node/node_communicator.hpp"
#include "src/core/build_info.hpp"
#include "src/core/process.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/cuda.hpp"
#include "src/run/imported_run.hpp"
#include "src/run/layout_report.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/directory.hpp"
#include "src/store/open.hpp"
#include "src/train/loop/initial_state.hpp"
#include "src/train/loop/resume_point.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/save_schedule.hpp"
#include "src/train/loop/start_record.hpp"
#include "src/train/loop/startup_report.hpp"
#include "src/train/loop/training_loop.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/memory_fit.hpp"
#include "src/train/step/product_timing.hpp"

namespace choir {
namespace {

/// Refuses an impossible batch, sharding or fault before anything is started. Collective.
BatchSizes checked_batch(Deck& deck, Mesh& mesh, const Faults& faults) {
  BatchSizes batch;
  together(mesh.world(), [&] {
    batch = resolve_batch(deck, mesh.along(Axis::data).size());
    Sharding::group_size(mesh, zero_of(deck));
    faults.require_ranks(mesh.world().size());
  });
  return batch;
}

/// Creates the run directory with its log, and reports the ranks. Collective.
DistInfo open_run(RunDirectory& directory, StartRecord& record, const Workplace& place,
                  const Faults& faults, StartScreen& start, Logger& log) {
  Mesh& mesh = *place.mesh;
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    directory.create([&](const std::string& text) { log.plain(text); });
    record.before_log();
  });
  record.own();
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    log.to_file(directory.log());
    faults.damage_data();
  });
  const std::string ranks = ranks_line(mesh, *place.device);
  log.plain(fmt::format("choir {}: ranks {}", build_revision(), ranks));
  for (const std::string& line : gather_texts(mesh.world(), who_am_i(mesh, *place.device)))
    start.add(line);
  DistInfo info = dist_info(mesh, *place.device, place.device_reason);
  start.add(text_of(info));
  if (place.device->kind() != DeviceKind::cuda) return info;
  const std::string warning = isolation_warning(mesh);
  if (!warning.empty() && mesh.rank() == 0) log.warn("{}", warning);
  return info;
}

/// Opens the data; afterwards the deck has its vocabulary. Collective.
std::unique_ptr<TrainingData> open_data(Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                        Logger& log) {
  auto data = deck.family().open_data(deck, batch, mesh, log);
  together(mesh.world(),
           [&] { resolve_vocabulary(deck, data->vocab_size(), "the training data"); });
  return data;
}

/// Returns TrainingData::contents() of rank 0 on all ranks. Collective.
std::string contents_of(const TrainingData& data, Communicator& world) {
  std::string contents;
  together(world, [&] {
    if (world.rank() == 0) contents = data.contents();
  });
  broadcast_text(world, contents);
  return contents;
}

/// Plans the step; afterwards the options contain the planned arena requests. Collective.
StepPlan planned(EngineOptions& options, const Deck& deck, const Workplace& place) {
  Mesh& mesh = *place.mesh;
  StepPlan plan = plan_in_memory(options, mesh, deck.family().writes_samples(deck), *place.device);
  together(mesh.world(), [&] { require_memory(plan, mesh.node().size(), *place.device); });
  return plan;
}

/// A warning if the micro-batches of a step are not a multiple of the ranks that share them; ""
/// otherwise. Ranks without a micro-batch wait for the others, which looks like a slow network.
std::string empty_places(const BatchSizes& batch) {
  const std::int64_t empty = batch.micro_batches() - batch.global;
  if (empty <= 0) return "";
  return fmt::format(
      "train.micro_batches = {} on {} data ranks: {} of {} micro-batches per step are empty, and "
      "ranks wait for each other; train.micro_batches={} avoids that",
      batch.global, batch.data_parallel, empty, batch.micro_batches(), batch.micro_batches());
}

/// Chooses the algorithms of products if the deck asks for it, before any product is computed.
/// Returns the table of choices for the checkpoints; without timing, that of the checkpoint `from`.
/// Collective.
std::string choose_products(const Deck& deck, const StepPlan& plan, const Workplace& place,
                            const std::optional<ResumePoint>& from, const RunDirectory& directory,
                            StartScreen& start, Logger& log) {
  const bool first = place.mesh->rank() == 0;
  const std::string before = from ? from->meta.products : "";
  if (!deck.train.time_products) return before;
  if (place.device->kind() != DeviceKind::cuda) {
    if (first && deck.given("train.time_products"))
      log.warn("train.time_products: products are not timed on {}", name_of(place.device->kind()));
    return before;
  }
  const std::string file = directory.products();
  std::vector<StoredProducts> stored;
  together(place.mesh->world(), [&] {
    if (!first) return;
    if (from) stored.push_back({.source = from->checkpoint.path, .table = before});
    if (std::filesystem::exists(file))
      stored.push_back({.source = file, .table = read_text_file(file)});
  });
  const ProductTiming timing = time_products(*place.mesh, *place.device, plan.products, stored);
  together(place.mesh->world(), [&] {
    if (timing.table.empty()) return;
    write_text_file(file + ".new", timing.table + "\n");
    std::filesystem::rename(file + ".new", file);
  });
  if (!timing.warning.empty()) log.warn("{}", timing.warning);
  start.add(timing.report);
  return timing.table;
}

/// "offload: nothing" -> "nothing", because the screen has its own labels.
std::string behind_label(const std::string& report) {
  return report.substr(report.find(": ") + 2);
}

/// Adds data, model and machine to the start screen. Collective.
void describe_run(const Deck& deck, const TrainingData& data, Engine& engine, const StepPlan& plan,
                  const RunDirectory& directory, StartScreen& start) {
  constexpr std::size_t kDataLines = 4;
  Mesh& mesh = engine.mesh();
  Device& device = engine.instance().device();
  const std::size_t bytes = std::size_t{device.host_visible() ? 4u : 32u} << 20;
  const std::vector<AxisSpeed> speeds = measure_axes(mesh, device, bytes);
  start.show("model", model_line(engine));
  start.show("data", first_lines(data.to_string(), kDataLines));
  start.show("batch", batch_line(engine));
  start.show("layout",
             fmt::format("{}, zero stage {}", mesh.layout().to_string(), deck.parallel.zero));
  if (const int stages = mesh.layout().size(Axis::pipeline); stages > 1) {
    const std::string report = pipeline_report(engine.options(), stages);
    start.show("pipeline", behind_label(report.substr(0, report.find('\n'))));
    start.add(report);
  }
  if (engine.options().offload.any()) start.show("offload", behind_label(offload_report(engine)));
  start.show("transport", transport_line(speeds));
  start.show("memory", memory_line(plan, mesh, device));
  start.show("saves", saves_line(deck, data.has_validation()));
  start.show("run", run_line(directory));
  start.add(transport_report(mesh, speeds));
  start.add("deck:\n" + deck_listing(deck, device.kind() == DeviceKind::cuda));
  start.add("data:\n" + data.to_string());
  start.add(model_report(engine));
  start.add(zero_report(engine));
  start.add(offload_report(engine));
  start.add(memory_report(plan, engine));
  start.add(layout_report(layout_facts(mesh, plan.traffic)));
}

/// Extent of the product that measures the peak. A few threads reach their peak with an eighth of
/// the work: a start computes it five times, which takes two seconds for the large one in fp64.
std::int64_t product_for(const Device& device) {
  const std::int64_t large = ops::large_product(device.kind());
  return device.kind() == DeviceKind::cpu && omp_get_max_threads() <= 8 ? large / 2 : large;
}

/// A sentence if the processors of the ranks multiply bf16 much faster than fp32, in which the run
/// computes; "" otherwise. `peak` is the rate of all ranks in fp32. Collective.
std::string faster_in_bf16(Engine& engine, double peak, std::int64_t extent) {
  constexpr double kWorthNaming = 1.5;  // times the rate of fp32
  Communicator& world = engine.mesh().world();
  const CpuFeatures& cpu = cpu_features();
  const bool multiplies = (cpu.amx_bf16 || cpu.avx512_bf16) &&
                          std::string_view(ops::gemm_library(DType::bf16)).starts_with("oneDNN");
  world.barrier();
  double rate =
      multiplies ? ops::measure_gemm(engine.instance().stream(), DType::bf16, extent) : 0.0;
  world.all_reduce(&rate, 1, DType::f64, ReduceOp::sum);
  if (rate < kWorthNaming * peak) return "";
  return fmt::format(
      "this processor multiplies bf16 about {:.0f} times faster than fp32: "
      "train.precision=bf16-mixed",
      rate / peak);
}

/// Measures the FLOP/s of all ranks at once, as in training, for the MFU, and adds the legend of
/// the log lines. Returns the peak and its source. Collective.
std::string find_peak(Engine& engine, Device& device, StartScreen& start, RunLog& run_log) {
  Communicator& world = engine.mesh().world();
  const DType compute = engine.options().precision.compute;
  const cuda::Card* card = cuda::card_of(device);
  const bool published = card && size_of(compute) == 2 && card->peak_bf16_flops > 0;
  const auto of_all = [&world](double peak) {
    world.all_reduce(&peak, 1, DType::f64, ReduceOp::sum);
    return peak;
  };
  const std::int64_t extent = product_for(device);
  const auto measure = [&engine, &world, compute, extent, of_all] {
    world.barrier();
    return of_all(ops::measure_gemm(engine.instance().stream(), compute, extent));
  };
  const double peak = published ? of_all(card->peak_bf16_flops) : measure();
  run_log.set_peak(peak, published ? std::function<double()>() : measure);
  const std::string source = published
                                 ? fmt::format("the dense rate of {} by its clock", card->name)
                                 : fmt::format("a product of {}^3 in {}, measured at this start",
                                               extent, name_of(compute));
  const std::string text = fmt::format("{:.3g} TFLOP/s: {}{}", peak / 1e12, source,
                                       world.size() == 1 ? "" : ", on all ranks together");
  start.show("mfu", "percent of " + text);
  if (device.kind() == DeviceKind::cpu && compute == DType::f32)
    if (const std::string faster = faster_in_bf16(engine, peak, extent); !faster.empty())
      start.show("hint", faster);
  start.add(metrics_legend("peak " + text));
  return text;
}

/// Loads the weights of a checkpoint or of other runs, or initialises them. A run that begins with
/// the weights of another one takes its tokenizer files along. Returns a report. Collective.
std::string restore(const std::optional<ResumePoint>& from, Checkpointer& checkpointer,
                    Engine& engine, const Deck& deck, const Progress& progress,
                    const BatchSizes& batch, const std::string& vocabulary,
                    const RunDirectory& directory, Logger& log) {
  std::string report;
  if (from) {
    checkpointer.restore(from->checkpoint, from->meta);
    report =
        changes_report(*from, deck, engine.options().schedule, progress.step, batch.data_parallel);
    if (!report.empty()) report = "changed since that checkpoint:" + report;
    const bool precision = is_changed(*from, deck, "train.precision");
    if (precision && engine.mesh().rank() == 0) log.warn("{}", report);
    if (!report.empty() && !precision) log.info("{}", report);
  } else {
    const bool from_base =
        !deck.checkpoint.init_map().empty() || !deck.checkpoint.init_run().empty();
    engine.instance().initialise(engine.options().seed, !from_base);
    const std::string random = warn_of_random_base(engine.instance(), deck);
    if (!random.empty() && engine.mesh().rank() == 0) log.warn("{}", random);
    if (!deck.checkpoint.init_map().empty()) {
      const PartsStart start = begin_with_parts(engine.instance(), deck, vocabulary);
      report = start.report;
      checkpointer.begin_on(start.bases);
      log.info("{}", report);
      together(engine.mesh().world(), [&] {
        if (engine.mesh().world().rank() != 0) return;
        for (const std::string& line :
             carry_tokenizer_of_parts(start.vocabularies, directory.path(), vocabulary)) {
          log.info("{}", line);
          report += "\n  " + line;
        }
      });
    } else if (!deck.checkpoint.init_run().empty()) {
      const WarmStart start = warm_start(engine.instance(), deck, vocabulary);
      report = start.to_string();
      log.info("{}", start.headline());
      checkpointer.begin_on(start.bases);
      Communicator& world = engine.mesh().world();
      together(world, [&] {
        if (world.rank() != 0) return;
        const std::string kept =
            carry_tokenizer(start.path, directory.path(), start.vocabulary, vocabulary);
        if (kept.empty()) return;
        log.info("{}", kept);
        report += "\n  " + kept;
      });
    }
  }
  require_equal_parameters(engine, "parameters at the start");
  return report;
}

/// Makes the directory that of a run which has done `step` steps. Local, on rank 0.
void write_start(const RunDirectory& directory, const Deck& deck, const Checkpointer& checkpointer,
                 std::int64_t step, const StartScreen& start, Logger& log) {
  directory.require_owned();
  if (deck.checkpoint.resume != "auto" && checkpointer.newest_step() > step)
    log.warn("checkpoint.resume is \"{}\": the later checkpoints of this run were moved to {}",
             deck.checkpoint.resume, directory.set_aside());
  directory.write_deck(resolved_json(deck), deck.source);
  directory.write_start(start.everything());
}

ExitCode start_and_train(Deck& deck, RunDirectory& directory, StartRecord& record,
                         const Workplace& place, Logger& log, double started) {
  Mesh& mesh = *place.mesh;
  Device& device = *place.device;
  Observers observers(deck, mesh, directory);
  StopRequest stop(deck.run.walltime, deck.run.walltime_margin,
                   mesh.rank() == 0 ? directory.stop_file() : "");
  stop.obey_at_once();
  if (mesh.rank() == 0) stop.announce();
  const BatchSizes batch = checked_batch(deck, mesh, observers.faults);
  observers.watch.start("start");
  StartScreen start;
  const DistInfo ranks = open_run(directory, record, place, observers.faults, start, log);
  const auto from = find_resume_point(deck, directory.checkpoints(), mesh.world(), log);
  const std::unique_ptr<TrainingData> data = open_data(deck, batch, mesh, log);
  const std::string contents = contents_of(*data, mesh.world());
  if (from)
    together(mesh.world(), [&] { require_same_data(*from, deck, contents, data->vocab_hash()); });

  const std::int64_t resident_before = resident_bytes();
  Progress progress;
  EngineOptions options = engine_options(deck, batch);
  options.shapes = data->shapes();
  options.evaluation_shapes = data->validation_shapes();
  together(mesh.world(), [&] { data->add_scorers(options.scorers, &device); });
  data->add_resident(options.scorers, &device);
  options.watchdog = &observers.watch.dog();
  StepPlan plan = planned(options, deck, place);
  const std::string products = choose_products(deck, plan, place, from, directory, start, log);
  std::string waits;
  const bool async = choose_async(deck, plan, mesh, device, waits);
  if (async) add_snapshot(plan.memory, plan);
  const Engine* stepping = nullptr;
  if (observers.faults.spoils_gradients()) {
    options.cuda_graph = false;
    options.spoil_gradients = [&](const Stream& stream, const Bucket& bucket) {
      const std::int64_t step = progress.step + stepping->in_flight() + 1;
      observers.faults.spoil_gradients(step, stream, bucket);
    };
  }
  Engine engine(options, device, mesh, plan.arena_bytes);
  stepping = &engine;
  data->load_scorers(device);
  data->load_resident(device);
  together(mesh.world(), [&] { observers.faults.require_parameters(engine.instance()); });
  describe_run(deck, *data, engine, plan, directory, start);
  if (deck.parallel.transport == RequestedTransport::automatic)
    if (const std::string note = shortage_note(mesh.world(), mesh.node());
        !note.empty() && mesh.rank() == 0)
      log.warn("{}", note);
  if (device.kind() == DeviceKind::cpu)
    if (const std::string note = shared_cores_note(mesh.node()); !note.empty() && mesh.rank() == 0)
      log.info("{}", note);
  if (!waits.empty() && mesh.rank() == 0) log.warn("{}", waits);
  if (!data->has_validation() && mesh.rank() == 0)
    if (const std::string note = unevaluated_note(deck); !note.empty()) log.warn("{}", note);
  if (deck.eval.interval > deck.train.max_steps && data->has_validation() && mesh.rank() == 0)
    log.info("eval.interval is {} and train.max_steps is {}: only the last step is evaluated",
             deck.eval.interval, deck.train.max_steps);
  if (deck.optimizer.warmup_steps > deck.train.max_steps && deck.train.max_steps > 0 &&
      mesh.rank() == 0)
    log.info(
        "optimizer.warmup_steps is {} and train.max_steps is {}: the learning rate does not "
        "reach {:g}; a warm-up of a tenth of the steps is usual: optimizer.warmup_steps={}",
        deck.optimizer.warmup_steps, deck.train.max_steps, deck.optimizer.learning_rate,
        std::max<std::int64_t>(1, deck.train.max_steps / 10));
  if (const std::string idle = empty_places(batch); !idle.empty() && mesh.rank() == 0)
    log.warn("{}", idle);

  if (mesh.rank() == 0)
    if (const std::string full = checkpoint_room(directory, engine, deck).warning(); !full.empty())
      log.warn("{}", full);

  RunLog run_log(deck, mesh, directory, log, started);
  Checkpointer checkpointer(deck, directory.checkpoints(), engine, progress, observers.faults, log,
                            {.async = async,
                             .snapshot_bytes = plan.snapshot_bytes,
                             .record = [&](const std::string& json) { run_log.record(json); },
                             .enter = [&](std::string_view phase) { observers.watch.save(phase); },
                             .directory = &directory});
  const std::string peak = find_peak(engine, device, start, run_log);

  observers.watch.start("resume");
  start.add(restore(from, checkpointer, engine, deck, progress, batch, data->vocabulary_json(),
                    directory, log));
  const std::int64_t last = deck.train.max_steps;
  if (from && progress.step >= last) {
    log.info("{}", complete_line(progress.step, deck));
    return ExitCode::done;
  }
  start.show("training", training_line(deck, options, progress.step + 1));
  if (options.schedule.tail_begin() >= 0) start.show("decay", decay_line(deck, options.schedule));
  together(mesh.world(), [&] { data->require_resumable(progress.consumed_samples); });
  checkpointer.begin();
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    write_start(directory, deck, checkpointer, progress.step, start, log);
    run_log.open_files(progress.step);
  });
  record.begin();
  log.plain(deck.log.verbose ? start.everything() : start.screen());
  const std::string first = start_record({.step = progress.step,
                                          .device = device.description(),
                                          .parameters = engine.instance().parameters().count(),
                                          .resident_before = resident_before,
                                          .mfu_peak = peak,
                                          .dist_info = ranks},
                                         mesh, plan);
  if (mesh.rank() == 0) run_log.record(first);
  data->start_training(engine.instance().storage().sharding(), batch.accum,
                       {.step = progress.step,
                        .consumed_samples = progress.consumed_samples,
                        .more = progress.data});
  run_log.start_training(progress.step, device);
  Evaluation evaluation(deck, *data, engine.instance(), directory, log);
  observers.follow(engine, progress);
  return TrainingLoop({.deck = deck,
                       .mesh = mesh,
                       .log = log,
                       .directory = directory,
                       .data = *data,
                       .contents = contents,
                       .products = products,
                       .plan = plan,
                       .engine = engine,
                       .progress = progress,
                       .checkpointer = checkpointer,
                       .observers = observers,
                       .evaluation = evaluation,
                       .run_log = run_log,
                       .stop = stop})
      .run();
}

}  // namespace

ExitCode train(Deck deck, const Workplace& place, Logger& log, double started) {
  Communicator& world = place.mesh->world();
  RunDirectory directory(deck.run.dir);
  StartRecord record(directory);
  try {
    return start_and_train(deck, directory, record, place, log, started);
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    record.end(error, own != nullptr && own->agreed_ranks() == world.size(), world.rank());
    throw;
  }
}

}  // namespace choir
