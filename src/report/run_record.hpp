#pragma once
// A run as reconstructed from its directory, for reports: curves, events, samples, deck and
// hardware. Missing files are noted. Local; no MPI, no model.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/report/metric_lines.hpp"
#include "src/run/evaluation_record.hpp"

namespace choir {
class FamilyTable;
}

namespace choir::report {

enum class EventKind { start, restart, save, failed_save, warning, stop, failure, end };
inline constexpr int kEventKinds = 8;
const char* name_of(EventKind kind);

struct RunEvent {
  EventKind kind = EventKind::start;
  std::string time;        ///< as in the log
  std::int64_t step = -1;  ///< -1: unknown
  std::string text;
};

struct DeckEntry {
  std::string value, source;  ///< as JSON; "default", "derived", "file", "override", or ""
  bool concerns = true;       ///< false: a key that this run does not read; see mark_own_keys()

  bool given() const { return source != "default" && source != "derived"; }
};

struct RankPlace {
  int node = 0, threads = 1;
  std::string host;
  double planned = 0;  ///< planned bytes on its device
};

struct PlannedMemory {
  std::string name, place;
  double bytes = 0;
};

/// The work of a phase as planned.
struct PhaseOfStep {
  std::string phase;
  double flops = 0, bytes = 0;
};

/// The latest start record of metrics.jsonl.
struct RunStart {
  bool known = false;
  std::string time, device, order;
  int tp = 1, cp = 1, dp = 1, pp = 1;
  double parameters = 0, resident_before = 0;
  std::string mfu_peak;  ///< "12.3 TFLOP/s: ...", of which mfu is a percentage; "" if not known
  std::vector<RankPlace> ranks;
  std::vector<PlannedMemory> memory;  ///< of rank 0
  std::vector<PhaseOfStep> work;      ///< of a step of rank 0
  std::vector<std::pair<std::string, std::string>> provenance;
};

/// One job of a run, which may be a chain of jobs.
struct JobStart {
  std::int64_t step = 0;   ///< steps done before the job
  std::string time;        ///< local time as in the log
  std::string layout{};    ///< "2 ranks = dp 2 x tp 1 x pp 1 x cp 1"; "" if it is not known
  std::string mfu_peak{};  ///< as in RunStart
};

/// The state of a run. `silent`: its log has no end, and nothing shows that it is running.
/// `imported`, `averaged`: it came from another program, or is an average of checkpoints, and has
/// not trained. `unsaved`: it ended, but its last save failed.
enum class Fate {
  unknown,
  finished,
  stopped,
  failed,
  running,
  silent,
  imported,
  unsaved,
  averaged
};
const char* name_of(Fate fate);
/// True for a run that holds a model and has no step of its own.
constexpr bool untrained(Fate fate) {
  return fate == Fate::imported || fate == Fate::averaged;
}

struct SampleText {
  std::int64_t step = 0;
  std::string text;
};

struct ReportedRun {
  std::string path, name;
  Fate fate = Fate::unknown;
  std::string state;        ///< the reason in a sentence; empty if the run finished
  std::int64_t done = -1;   ///< the last step that its log names as done; -1: none
  std::int64_t saved = -1;  ///< the step of its newest checkpoint; -1: none
  std::string last_line;    ///< time of the last log line that has one
  std::map<std::string, Curve> curves;
  std::vector<RunEvent> events;
  std::vector<std::string> summary;  ///< lines of the last summary in the log
  std::vector<SampleText> samples;   ///< a few over the whole run, the last among them
  std::size_t sample_count = 0;
  std::vector<EvaluationRecord> evaluations;  ///< see read_records()
  std::vector<WorstSamples> worst;            ///< see read_worst()
  std::map<std::string, DeckEntry> deck;
  std::vector<std::string> deck_files;  ///< included decks, then the one that was given
  std::string deck_crc32c;              ///< of deck.json, 8 hexadecimal digits; "" without it
  RunStart start;
  std::vector<JobStart> starts;    ///< in the order of the lines
  std::vector<std::string> notes;  ///< problems: truncated, missing or unknown data

  /// Returns an empty curve if the run has none with this key.
  const Curve& curve(const std::string& key) const;
  std::string deck_value(const std::string& key) const;  ///< "" if there is none
  bool empty() const { return curve("loss").x.empty(); }
  double last_step() const;         ///< of the metrics
  double steps_done() const;        ///< also those after the last line of the metrics
  double stepping_seconds() const;  ///< over all lines, without evaluations and saves
  /// The mean over steps of a value that each line has as the mean since the previous line, as dt
  /// and the phases are; 0 if it is unknown.
  double mean_over_steps(const std::string& key) const;
};

/// Reads a run. Throws DataError if `path` is not a run directory. A run without metrics is
/// empty().
ReportedRun read_run(const std::string& path);

// The parts of read_run():
/// Reads events, the summary and the fate from log.txt. Returns false if there is no log.
bool read_log(const std::string& path, ReportedRun& run);
/// Judges a run whose log has no end by the lock of the log (see RunDirectory) and the age of its
/// last line. `now` has the format of timestamp().
void judge_open_end(const std::string& log, const std::string& now, ReportedRun& run);
void read_deck(const std::string& path, ReportedRun& run);
void read_samples(const std::string& folder, ReportedRun& run);

/// Marks the keys that the run does not read, because they belong to other families of models, to
/// other devices or to drills, unless the user gave them. Local.
void mark_own_keys(const FamilyTable& families, ReportedRun& run);
/// Returns a test for keys that runs of a family read: `type` is the value of model.type. All keys
/// pass for a family that the table does not have.
std::function<bool(const std::string&)> keys_of_family(const FamilyTable& families,
                                                       const std::string& type);

}  // namespace choir::report
