#pragma once
// A run as its directory tells it, for reports: curves, events, samples, deck, where it ran. Reads
// what is there and says what is missing. Local; no MPI, no model.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "choir/report/metric_lines.hpp"

namespace choir::report {

enum class EventKind { start, restart, save, failed_save, warning, stop, failure, end };
inline constexpr int kEventKinds = 8;
const char* name_of(EventKind kind);

struct RunEvent {
  EventKind kind = EventKind::start;
  std::string time;        ///< as in the log
  std::int64_t step = -1;  ///< -1: not known
  std::string text;
};

struct DeckEntry {
  std::string value, source;  ///< as JSON; "default", "command line", a file with its line
};

struct RankPlace {
  int node = 0, threads = 1;
  std::string host;
  double planned = 0;  ///< bytes on its device
};

struct PlannedMemory {
  std::string name, place;
  double bytes = 0;
};

/// The latest start record of metrics.jsonl.
struct RunStart {
  bool known = false;
  std::string time, device, order;
  int tp = 1, cp = 1, dp = 1, pp = 1;
  double parameters = 0, resident_before = 0;
  std::vector<RankPlace> ranks;
  std::vector<PlannedMemory> memory;  ///< of rank 0
  std::vector<std::pair<std::string, std::string>> provenance;
};

/// A job of the chain that the run is.
struct JobStart {
  std::int64_t step = 0;  ///< done before it
  std::string time;       ///< local, as in the log
};

/// What is known of how a run stands. `silent`: its log has no end, and nothing shows that it runs.
enum class Fate { unknown, finished, stopped, failed, running, silent };
const char* name_of(Fate fate);

struct SampleText {
  std::int64_t step = 0;
  std::string text;
};

struct ReportedRun {
  std::string path, name;
  Fate fate = Fate::unknown;
  std::string state;      ///< why it is thought so, in a sentence; empty where it finished
  std::string last_line;  ///< time of the last line of the log with one
  std::map<std::string, Curve> curves;
  std::vector<RunEvent> events;
  std::vector<std::string> summary;  ///< lines of the last summary in the log
  std::vector<SampleText> samples;   ///< a few over the whole run, the last among them
  std::size_t sample_count = 0;
  std::map<std::string, DeckEntry> deck;
  RunStart start;
  std::vector<JobStart> starts;    ///< in the order of the lines
  std::vector<std::string> notes;  ///< what was cut, missing or not understood

  /// Empty where the run has no such curve.
  const Curve& curve(const std::string& key) const;
  std::string deck_value(const std::string& key) const;  ///< "" where there is none
  bool empty() const { return curve("loss").x.empty(); }
  double last_step() const;
  double stepping_seconds() const;  ///< over all lines, without evaluations and saves
};

/// Throws DataError where `path` is no run directory. A run without one line of metrics is empty().
ReportedRun read_run(const std::string& path);

// The parts of it.
/// Events, the summary and the fate as log.txt tells them. False where there is no log.
bool read_log(const std::string& path, ReportedRun& run);
/// Where a log has no end: whether a process holds the lock of the log (see RunDirectory),
/// and how old its last line is. `now` as timestamp() writes it.
void judge_open_end(const std::string& log, const std::string& now, ReportedRun& run);
void read_deck(const std::string& path, ReportedRun& run);
void read_samples(const std::string& folder, ReportedRun& run);

}  // namespace choir::report
