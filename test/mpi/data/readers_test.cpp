// Tests that every reader gives the same tokens as plain reads, on any number of ranks and any
// split into files.
#include <numeric>

#include "choir/comm/mesh/mesh.hpp"
#include "src/data/text/bench_readers.hpp"
#include "src/data/text/token_reader.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

constexpr std::int64_t kTokens = 1000;
constexpr std::int64_t kVocab = 900;

// A folder that all ranks can read and rank 0 owns.
class ReadersTest : public testing::Test {
 protected:
  ReadersTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    all_.resize(kTokens);
    for (std::size_t i = 0; i < all_.size(); ++i)
      all_[i] = static_cast<std::int32_t>((i * i + 7) % kVocab);
  }
  ~ReadersTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->along(Axis::data); }

  // Splits the tokens into files of `per_file` tokens.
  TokenStream stream_of(std::int64_t per_file) {
    const std::string name = fmt::format("split_{}", per_file);
    if (comm().rank() == 0) {
      std::filesystem::create_directories(*folder_ / name);
      for (std::int64_t first = 0; first < kTokens; first += per_file)
        test::write_native(
            *folder_ / fmt::format("{}/{:05}.tok", name, first),
            std::span(all_).subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(std::min(per_file, kTokens - first))),
            kVocab);
    }
    comm().barrier();
    return TokenStream::open({*folder_ / name}, TokenFormat::automatic, Split::train);
  }

  // Extents of call `call`: a different number on each rank, some crossing files, sometimes none.
  std::vector<TokenExtent> extents(int call) {
    std::vector<TokenExtent> wanted;
    for (int i = 0; i < (comm().rank() + call) % 4; ++i) {
      const std::int64_t first = (call * 131 + comm().rank() * 277 + i * 89) % (kTokens - 120);
      wanted.push_back({first, 1 + (call * 17 + i * 29) % 120});
    }
    return wanted;
  }

  bool right(const void* packed, const std::vector<TokenExtent>& wanted) {
    const auto* at = static_cast<const std::uint16_t*>(packed);
    for (const auto& extent : wanted)
      for (std::int64_t i = 0; i < extent.count; ++i)
        if (*at++ != all_[static_cast<std::size_t>(extent.first + i)]) return false;
    return true;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
  std::vector<std::int32_t> all_;
};

std::vector<ReaderOptions> all_options() {
  std::vector<ReaderOptions> all;
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node})
    for (const auto preload : {Preload::none, Preload::host})
      for (const int group : {0, 1, 2})
        for (const int readers : {0, 1, 2}) {
          const bool grouped = kind == ReaderKind::scatter || kind == ReaderKind::node;
          if (!grouped && group + readers > 0) continue;
          ReaderOptions options;
          options.kind = kind;
          options.preload = preload;
          options.group_ranks = group;
          options.group_readers = readers;
          all.push_back(options);
        }
  return all;
}

TEST_F(ReadersTest, AllGiveTheSameTokens) {
  for (const std::int64_t per_file : {kTokens, std::int64_t{333}, std::int64_t{50}}) {
    const TokenStream stream = stream_of(per_file);
    for (ReaderOptions options : all_options()) {
      for (const std::size_t chunk : {std::size_t{1} << 30, std::size_t{64}}) {
        options.chunk_bytes = chunk;
        const auto reader = make_reader(comm(), stream, options, 400, 4);
        bool ok = true;
        for (int call = 0; call < 6; ++call) {
          const auto wanted = extents(call);
          ok = right(reader->read(wanted), wanted) && ok;
        }
        EXPECT_ALL_RANKS(ok) << name_of(options.kind) << " group " << options.group_ranks
                             << " readers " << options.group_readers << " chunk " << chunk
                             << " files of " << per_file;
      }
    }
  }
}

// There are more files than a reader keeps open.
TEST_F(ReadersTest, ManyFiles) {
  const TokenStream stream = stream_of(4);
  ASSERT_EQ(stream.files().size(), 250u);
  for (const auto kind : {ReaderKind::own, ReaderKind::collective}) {
    ReaderOptions options;
    options.kind = kind;
    const auto reader = make_reader(comm(), stream, options, kTokens, 1);
    for (int call = 0; call < 2; ++call) {
      const std::vector<TokenExtent> everything{{0, kTokens}};
      EXPECT_ALL_RANKS(right(reader->read(everything), everything));
    }
  }
}

// A file shrinks during the run, and only the extents of one rank touch the loss: every rank gets
// the DataError.
TEST_F(ReadersTest, AFailureOfOneRankIsThrownOnAll) {
  for (const auto& options : all_options()) {
    if (options.preload != Preload::none) continue;
    const TokenStream stream = stream_of(500);
    {
      const auto reader = make_reader(comm(), stream, options, 400, 4);
      comm().barrier();
      if (comm().rank() == 0) std::filesystem::resize_file(stream.files()[1].path, 100);
      comm().barrier();
      const std::int64_t first = comm().rank() == comm().size() - 1 ? 900 : 10;
      const std::vector<TokenExtent> wanted{{first, 50}};
      const std::string said = test::data_error_of([&] { reader->read(wanted); });
      EXPECT_ALL_RANKS(said.find("00500.tok") != std::string::npos)
          << name_of(options.kind) << " said '" << said << "'";
      // The reader still works.
      const std::vector<TokenExtent> good{{20, 40}};
      EXPECT_ALL_RANKS(right(reader->read(good), good));
    }
    comm().barrier();
  }
}

TEST_F(ReadersTest, TooMuchOnOneRankIsRefusedOnAll) {
  const TokenStream stream = stream_of(kTokens);
  for (const auto& options : all_options()) {
    if (options.preload != Preload::none) continue;
    const auto reader = make_reader(comm(), stream, options, 10, 1);
    const std::vector<TokenExtent> wanted{{0, comm().rank() == 0 ? 11 : 10}};
    bool refused = false;
    try {
      reader->read(wanted);
    } catch (const Error&) {
      refused = true;
    }
    EXPECT_ALL_RANKS(refused) << name_of(options.kind);
  }
}

TEST_F(ReadersTest, HintsAreEchoed) {
  const TokenStream stream = stream_of(kTokens);
  ReaderOptions options;
  options.hints = {{"cb_nodes", "1"}, {"cb_buffer_size", "1048576"}};
  const auto reader = make_reader(comm(), stream, options, 10, 1);
  const std::vector<TokenExtent> wanted{{0, 10}};
  reader->read(wanted);
  bool found = false;
  for (const auto& [key, value] : reader->hints()) found = found || key == "cb_buffer_size";
  EXPECT_ALL_RANKS(found || reader->hints().empty());  // a library may drop unknown hints
}

TEST_F(ReadersTest, BenchMeasuresEveryReader) {
  const auto rows = bench_readers(comm(), folder_->path(), 1 << 20, 2, {}, 1 << 16);
  bool ok = rows.size() == 5 && rows[0].reader == "pread" && rows[0].ratio == 1.0;
  for (const auto& row : rows) ok = ok && row.seconds > 0 && row.gb_per_s > 0;
  EXPECT_ALL_RANKS(ok);
}

}  // namespace
}  // namespace choir
