#include "choir/comm/flight_log.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

namespace choir {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
/// Replaces the number of a record while a thread writes it exclusively.
constexpr std::uint64_t kWriting = ~std::uint64_t{0};

std::uint64_t packed(const CallRecord& call) {
  return static_cast<std::uint64_t>(call.call) | static_cast<std::uint64_t>(call.state) << 8 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.peer)) << 32;
}

void copy(std::atomic<std::uint64_t>& to, const std::atomic<std::uint64_t>& from) {
  to.store(from.load(kRelaxed), kRelaxed);
}

thread_local double seconds_inside = 0;

/// A use of the log. The constructor announces it before the log's address is read, and the
/// destructor withdraws it: move_to() waits for the uses that may have seen the old address. Both
/// sides are sequentially consistent.
class Use {
 public:
  explicit Use(std::atomic<int>& users) : users_(users) { users_.fetch_add(1); }
  ~Use() { users_.fetch_sub(1); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<int>& users_;
};

}  // namespace

const char* name_of(CommCall call) {
  static constexpr std::array kNames{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                     "reduce",     "scatter",        "gather",     "all_to_all",
                                     "barrier",    "send",           "receive",    "exchange"};
  const auto index = static_cast<std::size_t>(call);
  return index < kNames.size() ? kNames[index] : "?";
}

const char* name_of(CallState state) {
  static constexpr std::array kNames{"started", "waiting", "done", "queued", "failed"};
  const auto index = static_cast<std::size_t>(state);
  return index < kNames.size() ? kNames[index] : "?";
}

void SharedName::set(std::string_view text) {
  std::array<char, kBytes> bytes{};
  std::memcpy(bytes.data(), text.data(), std::min(text.size(), kBytes - 1));
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    words_[i].store(word, kRelaxed);
  }
}

void SharedName::set(const SharedName& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) copy(words_[i], other.words_[i]);
}

std::string SharedName::text() const {
  std::array<char, kBytes + 1> bytes{};
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i].load(kRelaxed);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  return bytes.data();
}

int FlightLog::join(std::string_view name, std::uint64_t id, int rank, int size) {
  for (int place = 0; place < kGroups; ++place) {
    Group& group = groups_[static_cast<std::size_t>(place)];
    std::uint32_t no = 0;
    if (!group.taken.compare_exchange_strong(no, 1, std::memory_order_acq_rel)) continue;
    group.entered.store(0, kRelaxed);
    group.shape.store(static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint32_t>(size),
                      kRelaxed);
    group.name.set(name);
    group.id.store(id, std::memory_order_release);
    return place;
  }
  return -1;
}

void FlightLog::leave(int place) {
  if (place < 0) return;
  Group& group = groups_[static_cast<std::size_t>(place)];
  group.id.store(0, std::memory_order_release);
  group.taken.store(0, std::memory_order_release);
}

// A thread that is suspended while it writes may be lapped by others, which then skip its record.
std::uint64_t FlightLog::claim_next() {
  for (;;) {
    const std::uint64_t number = next_.fetch_add(1, kRelaxed) + 1;
    Word& owner = records_[number % kRecords].number;
    std::uint64_t before = owner.load(kRelaxed);
    if (before < number &&
        owner.compare_exchange_strong(before, kWriting, std::memory_order_acquire, kRelaxed))
      return number;
  }
}

std::uint64_t FlightLog::begin(const SharedName& name, int place, const CallRecord& call) {
  const std::uint64_t number = claim_next();
  Record& record = records_[number % kRecords];
  std::atomic_thread_fence(std::memory_order_release);
  record.group.store(call.group, kRelaxed);
  record.sequence.store(call.sequence, kRelaxed);
  record.bytes.store(call.bytes, kRelaxed);
  record.start.store(std::bit_cast<std::uint64_t>(call.start), kRelaxed);
  record.end.store(0, kRelaxed);
  record.what.store(packed(call), kRelaxed);
  record.name.set(name);
  record.number.store(number, std::memory_order_release);
  if (place >= 0 && is_collective(call.call))
    groups_[static_cast<std::size_t>(place)].entered.store(call.sequence,
                                                           std::memory_order_release);
  return number;
}

void FlightLog::change(std::uint64_t number, CallState state, double end) {
  Record& record = records_[number % kRecords];
  std::uint64_t owner = number;
  while (
      !record.number.compare_exchange_weak(owner, kWriting, std::memory_order_acquire, kRelaxed)) {
    if (owner != kWriting && owner != number) return;  // the record has been overwritten
    if (owner == kWriting) std::this_thread::yield();
    owner = number;
  }
  std::atomic_thread_fence(std::memory_order_release);
  if (end > 0) record.end.store(std::bit_cast<std::uint64_t>(end), kRelaxed);
  const std::uint64_t what = record.what.load(kRelaxed) & ~(std::uint64_t{0xff} << 8);
  record.what.store(what | static_cast<std::uint64_t>(state) << 8, kRelaxed);
  record.number.store(number, std::memory_order_release);
}

void FlightLog::take_over(const FlightLog& other) {
  copy(next_, other.next_);
  for (std::size_t i = 0; i < kRecords; ++i) {
    Record& to = records_[i];
    const Record& from = other.records_[i];
    const std::uint64_t number = from.number.load(std::memory_order_acquire);
    copy(to.group, from.group), copy(to.sequence, from.sequence), copy(to.bytes, from.bytes);
    copy(to.start, from.start), copy(to.end, from.end), copy(to.what, from.what);
    to.name.set(from.name);
    std::atomic_thread_fence(std::memory_order_acquire);
    // A record that a thread is writing at this moment is written in the old log, so here it counts
    // as never written.
    const bool whole = number != kWriting && from.number.load(kRelaxed) == number;
    to.number.store(whole ? number : 0, std::memory_order_release);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& to = groups_[i];
    const Group& from = other.groups_[i];
    to.taken.store(from.taken.load(kRelaxed), kRelaxed);
    copy(to.shape, from.shape), copy(to.entered, from.entered);
    to.name.set(from.name);
    copy(to.id, from.id);
  }
}

std::vector<CallRecord> FlightLog::records() const {
  std::vector<std::pair<std::uint64_t, CallRecord>> found;
  for (const Record& r : records_) {
    const std::uint64_t number = r.number.load(std::memory_order_acquire);
    if (number == 0 || number == kWriting) continue;
    const std::uint64_t what = r.what.load(kRelaxed);
    CallRecord call{.call = static_cast<CommCall>(what & 0xff),
                    .state = static_cast<CallState>(what >> 8 & 0xff),
                    .peer = static_cast<int>(static_cast<std::uint32_t>(what >> 32)),
                    .group = r.group.load(kRelaxed),
                    .sequence = r.sequence.load(kRelaxed),
                    .bytes = r.bytes.load(kRelaxed),
                    .start = std::bit_cast<double>(r.start.load(kRelaxed)),
                    .end = std::bit_cast<double>(r.end.load(kRelaxed)),
                    .name = r.name.text()};
    std::atomic_thread_fence(std::memory_order_acquire);
    // A change keeps the number but not the contents of a record.
    if (r.number.load(std::memory_order_acquire) == number && r.what.load(kRelaxed) == what)
      found.emplace_back(number, std::move(call));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CallRecord> records;
  for (auto& [number, call] : found) records.push_back(std::move(call));
  return records;
}

std::vector<GroupRecord> FlightLog::groups() const {
  std::vector<GroupRecord> list;
  for (const Group& g : groups_) {
    const std::uint64_t id = g.id.load(std::memory_order_acquire);
    if (id == 0) continue;
    const std::uint64_t shape = g.shape.load(kRelaxed);
    list.push_back({.id = id,
                    .rank = static_cast<int>(shape >> 32),
                    .size = static_cast<int>(shape & 0xffffffff),
                    .entered = g.entered.load(std::memory_order_acquire),
                    .name = g.name.text()});
  }
  return list;
}

FlightRecorder& FlightRecorder::of_process() {
  static auto* recorder = new FlightRecorder();  // never destroyed: communicators may end after
                                                 // static objects
  return *recorder;
}

template <class F>
auto FlightRecorder::writing(const F& f) {
  const Use use(users_);
  return f(*log_.load());
}

int FlightRecorder::join(std::string_view name, std::uint64_t id, int rank, int size) {
  return writing([&](FlightLog& log) { return log.join(name, id, rank, size); });
}

void FlightRecorder::leave(int place) {
  writing([&](FlightLog& log) { log.leave(place); });
}

std::uint64_t FlightRecorder::begin(const SharedName& name, int place, const CallRecord& call) {
  return writing([&](FlightLog& log) { return log.begin(name, place, call); });
}

void FlightRecorder::change(std::uint64_t record, CallState state, double end) {
  writing([&](FlightLog& log) { log.change(record, state, end); });
}

void FlightRecorder::read(const std::function<void(const FlightLog&)>& reader) const {
  const Use use(users_);
  reader(*log_.load());
}

void FlightRecorder::move_to(FlightLog* log) {
  FlightLog* const target = log != nullptr ? log : &own_;
  FlightLog* const old = log_.load();
  if (target == old) return;
  target->take_over(*old);
  log_.store(target);
  while (users_.load() != 0) std::this_thread::yield();
}

double seconds_in_communication() {
  return seconds_inside;
}

void add_seconds_in_communication(double seconds) {
  seconds_inside += seconds;
}

}  // namespace choir
