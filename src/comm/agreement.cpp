#include "src/comm/agreement.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    Failure failure = choir::failure_of(known);
    if (const auto* own = dynamic_cast<const Error*>(&known)) failure.text = what_and_where(*own);
    return failure;
  } catch (...) {
    return {ExitCode::other, "unknown exception", {}, {}};
  }
}

template <class E>
[[noreturn]] void throw_agreed(E error, const Communicator& comm) {
  error.set_agreed_ranks(comm.size());
  throw error;
}

[[noreturn]] void throw_as(ExitCode code, const std::string& text, const std::string& hint,
                           const Communicator& comm) {
  switch (code) {
    case ExitCode::deck:
      throw_agreed(DeckError(text, hint), comm);
    case ExitCode::data:
      throw_agreed(DataError(text, hint), comm);
    case ExitCode::numeric:
      throw_agreed(NumericError(text, hint), comm);
    case ExitCode::communication:
      throw_agreed(CommError(text, hint), comm);
    case ExitCode::storage:
      throw_agreed(StorageError(text, hint), comm);
    default:
      throw_agreed(Error(code, text, hint), comm);
  }
}

// The lowest rank must win a maximum, so (2^31 - rank) is packed above the exit code. 0 means no
// failure.
std::int64_t pack(ExitCode code, int rank) {
  if (code == ExitCode::done) return 0;
  return ((std::int64_t{1} << 31) - rank) * 256 + static_cast<int>(code);
}

/// True if the maximum of the digests equals their minimum, which is the complement of the maximum
/// of the complements. No other digests are exchanged.
bool all_equal(Communicator& comm, std::uint64_t digest) {
  std::array<std::int64_t, 2> ends{static_cast<std::int64_t>(digest),
                                   static_cast<std::int64_t>(~digest)};
  comm.all_reduce(ends.data(), ends.size(), DType::i64, ReduceOp::max);
  return ends[0] == ~ends[1];
}

}  // namespace

StepVerdict agree(Communicator& comm, const StepVerdict& mine) {
  std::array<std::int64_t, 3> packed{pack(mine.failure, comm.rank()), mine.stop,
                                     mine.nonfinite ? 1 : 0};
  comm.all_reduce(packed.data(), packed.size(), DType::i64, ReduceOp::max);
  StepVerdict all;
  if (packed[0] != 0) {
    all.failure = static_cast<ExitCode>(packed[0] % 256);
    all.failing_rank = static_cast<int>((std::int64_t{1} << 31) - packed[0] / 256);
  }
  all.stop = static_cast<int>(packed[1]);
  all.nonfinite = packed[2] != 0;
  return all;
}

void raise_agreed(Communicator& comm, const StepVerdict& agreed, const std::exception_ptr& mine) {
  CHOIR_CHECK(agreed.failing_rank >= 0, "nothing failed on {}", comm.name());
  CHOIR_CHECK(comm.rank() != agreed.failing_rank || mine, "rank {} has no error to raise",
              comm.rank());
  if (comm.size() == 1) std::rethrow_exception(mine);
  std::int64_t failing = mine ? 1 : 0;
  comm.all_reduce(&failing, 1, DType::i64, ReduceOp::sum);
  Failure failure;
  if (mine) failure = failure_of(mine);
  // An error that all ranks share, such as a wrong deck, is not one of a rank or of its host.
  const bool shared = failing == comm.size() &&
                      all_equal(comm, fnv1a(failure.text + '\0' + failure.hint +
                                            std::to_string(static_cast<int>(failure.code))));
  if (!shared && comm.rank() == agreed.failing_rank) {
    failure.text = fmt::format("rank {} on {}: {}", comm.rank(), host_name(), failure.text);
    if (failing > 1) failure.text += fmt::format(" ({} of {} ranks failed)", failing, comm.size());
  }
  broadcast_text(comm, failure.text, agreed.failing_rank);
  broadcast_text(comm, failure.hint, agreed.failing_rank);
  throw_as(agreed.failure, failure.text, failure.hint, comm);
}

void together(Communicator& comm, const std::function<void()>& action) {
  std::exception_ptr error;
  StepVerdict mine;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
    mine.failure = failure_of(error).code;
    if (mine.failure == ExitCode::done) mine.failure = ExitCode::other;
  }
  const StepVerdict all = agree(comm, mine);
  if (all.failing_rank >= 0) raise_agreed(comm, all, error);
}

void require_equal(Communicator& comm, std::uint64_t digest, const std::string& what) {
  if (all_equal(comm, digest)) return;
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(comm.size()));
  digests[static_cast<std::size_t>(comm.rank())] = digest;
  comm.all_gather(digests.data(), 1, DType::i64);
  std::map<std::uint64_t, int> votes;
  for (const std::uint64_t d : digests) ++votes[d];
  std::uint64_t majority = digests[0];  // of equal numbers the lowest rank's side wins
  for (const std::uint64_t d : digests)
    if (votes[d] > votes[majority]) majority = d;
  std::string different;
  for (std::size_t r = 0; r < digests.size(); ++r)
    if (digests[r] != majority) different += (different.empty() ? "" : ", ") + std::to_string(r);
  throw_as(ExitCode::communication,
           fmt::format("{} differ between ranks of {}: rank(s) {} disagree with the {} "
                       "ranks that agree",
                       what, comm.name(), different, votes[majority]),
           "faulty memory or a rank started with another binary or deck; restart from the last "
           "checkpoint without that node",
           comm);
}

std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(comm.rank() == 0 ? comm.size() : 0);
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(ranks, 0), units(ranks, sizeof bytes), offsets(ranks);
  for (std::size_t r = 0; r < ranks; ++r) offsets[r] = static_cast<std::int64_t>(r * sizeof bytes);
  comm.gather(&bytes, sizeof bytes, sizes.data(), units.data(), offsets.data(), 0);
  std::int64_t total = 0;
  for (std::size_t r = 0; r < ranks; ++r) offsets[r] = total, total += sizes[r];
  std::string all(static_cast<std::size_t>(total), '\0');
  comm.gather(mine.data(), mine.size(), all.data(), sizes.data(), offsets.data(), 0);
  std::vector<std::string> texts;
  if (comm.rank() != 0) return texts;
  for (std::size_t r = 0; r < ranks; ++r)
    texts.push_back(
        all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(sizes[r])));
  return texts;
}

void broadcast_text(Communicator& comm, std::string& text, int root) {
  std::uint64_t bytes = text.size();
  comm.broadcast(&bytes, sizeof bytes, root);
  text.resize(bytes);
  if (bytes > 0) comm.broadcast(text.data(), bytes, root);
}

}  // namespace choir
