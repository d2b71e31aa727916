#include "src/data/text/bench_readers.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/data/text/mpi_group.hpp"

namespace choir {
namespace {

constexpr std::int64_t kTokenBytes = 2;

// A file that exists while this object lives, on all ranks.
class ScratchFile {
 public:
  ScratchFile(Communicator& comm, const std::string& folder, std::int64_t bytes) : comm_(comm) {
    together(comm, [&] {
      if (comm.rank() != 0) return;
      PosixFile file = PosixFile::temporary(folder + "/choir_bench_readers_");
      path_ = file.path();
      write(file, bytes);
    });
    broadcast_text(comm, path_);
  }
  ~ScratchFile() {
    std::error_code ignored;
    if (comm_.rank() == 0) std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  static void write(PosixFile& file, std::int64_t bytes) {
    const PhiloxKey key = philox_key(1, "bench.readers");
    std::vector<std::uint32_t> block(std::size_t{1} << 20);
    for (std::int64_t done = 0; done < bytes;) {
      for (std::size_t i = 0; i < block.size(); i += 4) {
        const auto words = philox_at(key, static_cast<std::uint64_t>(done) + i);
        std::copy(words.begin(), words.end(), block.begin() + static_cast<std::ptrdiff_t>(i));
      }
      const auto here = std::min<std::int64_t>(bytes - done, std::ssize(block) * 4);
      file.write_at(block.data(), static_cast<std::size_t>(here), done);
      done += here;
    }
  }
  Communicator& comm_;
  std::string path_;
};

struct Share {
  std::int64_t first = 0, tokens = 0, block = 0;
};

// The time of the slowest rank. Ranks that are done sleep until all are, because spinning would
// slow down the others if cores are shared.
double slowest(MpiGroup& group, double seconds) {
  auto nanoseconds = static_cast<std::int64_t>(seconds * 1e9);
  group.agree([] {}, {&nanoseconds, 1});
  return static_cast<double>(nanoseconds) * 1e-9;
}

double time_pread(MpiGroup& group, const std::string& path, const Share& share,
                  std::vector<char>& buffer) {
  const PosixFile file = PosixFile::for_reading(path);
  group.agree([] {});
  const double begin = now_seconds();
  for (std::int64_t done = 0; done < share.tokens; done += share.block) {
    const std::int64_t here = std::min(share.block, share.tokens - done);
    file.read_at(buffer.data(), static_cast<std::size_t>(here * kTokenBytes),
                 (share.first + done) * kTokenBytes);
  }
  return slowest(group, now_seconds() - begin);
}

double time_reader(MpiGroup& group, TokenReader& reader, const Share& share) {
  group.agree([] {});
  const double begin = now_seconds();
  for (std::int64_t done = 0; done < share.tokens; done += share.block) {
    const TokenExtent extent{share.first + done, std::min(share.block, share.tokens - done)};
    reader.read({&extent, 1});
  }
  return slowest(group, now_seconds() - begin);
}

// Number of blocks of this rank that differ from those that pread gets.
std::int64_t check_reader(MpiGroup& group, TokenReader& reader, const std::string& path,
                          const Share& share, std::vector<char>& buffer) {
  const PosixFile file = PosixFile::for_reading(path);
  std::int64_t wrong = 0;
  group.agree([] {});
  for (std::int64_t done = 0; done < share.tokens; done += share.block) {
    const TokenExtent extent{share.first + done, std::min(share.block, share.tokens - done)};
    const void* read = reader.read({&extent, 1});
    const auto bytes = static_cast<std::size_t>(extent.count * kTokenBytes);
    file.read_at(buffer.data(), bytes, extent.first * kTokenBytes);
    wrong += std::memcmp(read, buffer.data(), bytes) != 0;
  }
  return wrong;
}

}  // namespace

std::vector<ReaderSpeed> bench_readers(Communicator& comm, const std::string& folder,
                                       std::int64_t bytes, int rounds, const ReaderOptions& options,
                                       std::int64_t block_bytes) {
  CHOIR_CHECK(rounds >= 1 && bytes >= kTokenBytes * comm.size(), "{} bytes, {} rounds", bytes,
              rounds);
  const std::int64_t tokens = bytes / kTokenBytes / comm.size();  // tokens of each rank
  const ScratchFile scratch(comm, folder, tokens * kTokenBytes * comm.size());
  TokenStream stream;
  together(comm, [&] {
    stream = TokenStream::open({scratch.path()}, TokenFormat::nanogpt, Split::train);
  });
  const Share share{tokens * comm.rank(), tokens,
                    std::clamp<std::int64_t>(block_bytes / kTokenBytes, 1, tokens)};
  MpiGroup group(comm);
  std::vector<char> buffer(static_cast<std::size_t>(share.block * kTokenBytes));
  std::vector<std::string> names{"pread"};
  std::vector<std::unique_ptr<TokenReader>> readers;
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node}) {
    ReaderOptions of_kind = options;
    of_kind.kind = kind;
    of_kind.preload = Preload::none;
    readers.push_back(make_reader(comm, stream, of_kind, share.block, 1));
    names.emplace_back(name_of(kind));
  }
  std::vector<std::int64_t> wrong(names.size());
  std::vector<std::vector<double>> seconds(names.size()), ratios(names.size());
  for (int round = -1; round < rounds; ++round) {  // the first only warms up
    double plain = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (round < 0 && i > 0) {
        wrong[i] = check_reader(group, *readers[i - 1], scratch.path(), share, buffer);
        comm.all_reduce(&wrong[i], 1, DType::i64, ReduceOp::sum);
        continue;
      }
      const double took = i == 0 ? plain = time_pread(group, scratch.path(), share, buffer)
                                 : time_reader(group, *readers[i - 1], share);
      if (round < 0) continue;
      seconds[i].push_back(took);
      ratios[i].push_back(plain / took);
    }
  }
  const std::int64_t reads = (tokens + share.block - 1) / share.block * comm.size();
  std::vector<ReaderSpeed> rows;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double typical = median_of(seconds[i]);
    rows.push_back({names[i], typical,
                    static_cast<double>(tokens * comm.size() * kTokenBytes) / typical / 1e9,
                    median_of(ratios[i]), seconds[i], share.block * kTokenBytes, reads, wrong[i]});
  }
  return rows;
}

}  // namespace choir
