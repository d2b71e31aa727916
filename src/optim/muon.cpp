#include "src/optim/muon.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/dispatch.hpp"
#include "kernels/update/muon.hpp"
#include "src/optim/adamw.hpp"
#include "src/optim/matrix_exchange.hpp"
#include "src/optim/newton_schulz.hpp"

namespace choir {

bool is_matrix(const MuonSettings& settings, const Parameter& p) {
  const bool used = p.use == Use::hidden || (settings.adapters && p.use == Use::adapter);
  return used && p.shape.rank() > 1 && p.shard.alignment == 0 && p.tied_to == nullptr;
}

double muon_factor(std::string_view scale, std::int64_t rows, std::int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  if (scale == "original") return std::sqrt(std::max(1.0, a / b));
  if (scale == "match_rms_adamw") return 0.2 * std::sqrt(std::max(a, b));
  CHOIR_CHECK(scale == "spectral_unclamped", "there is no scale '{}'", scale);
  return std::sqrt(a / b);
}

namespace {

UpdateSettings settings_of_others(const UpdateSettings& settings) {
  const auto muon = settings.own_as<MuonSettings>();
  const double rate =
      muon.adamw_learning_rate > 0 ? muon.adamw_learning_rate / settings.learning_rate : 1;
  UpdateSettings others = settings;
  if (muon.adamw_weight_decay >= 0) others.weight_decay = muon.adamw_weight_decay;
  others.scale = [scale = settings.scale, rate](const Parameter& p) {
    return rate * (scale ? scale(p) : 1);
  };
  return others;
}

OwnerOptions owner_options(const UpdateContext& context) {
  return {.data_ranks = context.storage.sharding().data().size(),
          .tensor = context.storage.parameters().tensor(),
          .chosen = [muon = context.settings.own_as<MuonSettings>()](
                        const Parameter& p) { return is_matrix(muon, p); },
          .work = newton_schulz_flops};
}

class MuonUpdater final : public Updater {
 public:
  explicit MuonUpdater(const UpdateContext& context)
      : storage_(&context.storage),
        settings_(&context.settings),
        muon_(context.settings.own_as<MuonSettings>()),
        of_others_(settings_of_others(context.settings)),
        adamw_({context.storage, context.device, of_others_, context.seed, context.exact}),
        newton_schulz_(newton_schulz_set(muon_.coefficients), muon_.steps),
        rounding_(moment_rounding_key(context.seed)),
        exchange_(context.storage, context.device,
                  matrix_rounds(context.storage.parameters(), owner_options(context))) {
    std::vector<NewtonSchulz::Extents> extents;
    for (const MatrixRound& round : exchange_.rounds()) {
      rounds_.push_back({round.first, round.count, !round.matrices.empty()});
      for (const Matrix& m : round.matrices) extents.push_back({m.rows, m.columns});
    }
    newton_schulz_.reserve(context.device, storage_->precision().gradient, extents);
    const bool rounds = storage_->precision().moment == DType::bf16;
    for (const Bucket& bucket : storage_->parameters().buckets()) {
      others_.push_back(others(bucket));
      spans_.push_back(rounds ? element_spans(bucket)
                              : std::vector<ElementSpan>{{.local = {0, bucket.size}}});
    }
  }

  void prepare(const Stream& /*stream*/, const UpdateInputs& inputs) override {
    tensor_ = inputs.holders.empty() ? nullptr : inputs.holders.front();
  }

  std::span<const Round> rounds() const override { return rounds_; }

  void collect(const Stream& stream, const ops::StepControl* control,
               const UpdatePart& part) override {
    on_slices(part, [&](const MatrixExchange::Slice& slice, const Range& at,
                        const TensorView& direction) {
      for (const ElementSpan& span : spans_[index_of(*part.bucket)]) {
        const auto [from, count] = overlap(span.local, {part.in_bucket.first + at.first, at.count});
        if (count == 0) continue;
        const std::int64_t first = from - part.in_bucket.first;
        ops::muon_momentum(
            stream,
            {.gradient = part.gradient.slice(first, count),
             .m = part.state(0, first, count),
             .direction = slice.sent ? direction.slice(first - at.first, count) : TensorView{},
             .momentum = muon_.momentum,
             .nesterov = muon_.nesterov,
             .control = control,
             .rounding = rounding_,
             .elements = span.elements.behind(from - span.local.first)});
      }
    });
  }

  void exchange(const Stream& stream, const ops::StepControl* control, std::size_t round) override {
    if (ops::computes(stream) && control->apply == 0) return;  // on all ranks alike
    Communicator& data = storage_->sharding().data();
    exchange_.gather(stream, data, tensor_, round);
    exchange_.on_owned(stream, round,
                       [&](const TensorView& x) { newton_schulz_.orthogonalise(stream, x); });
    exchange_.scatter(stream, data, tensor_, round);
  }

  void update(const Stream& stream, const ops::StepControl* control,
              const UpdatePart& part) override {
    on_slices(part, [&](const MatrixExchange::Slice& slice, const Range& at,
                        const TensorView& direction) {
      const Matrix& m = exchange_.matrix_of(index_of(*part.bucket), *slice.block);
      const Parameter& p = *slice.block->parameter;
      ops::muon_step(stream, {.master = part.master.slice(at.first, at.count),
                              .direction = direction,
                              .copy = part.copy_of(at.first, at.count),
                              .scale = settings_->scale_of(p),
                              .factor = muon_factor(muon_.scale, m.rows, m.columns),
                              .decay = p.decay ? settings_->weight_decay : 0,
                              .control = control});
    });
    for (const Range& range : others_[index_of(*part.bucket)])
      adamw_.update_range(stream, control, part, range);
  }

  void add_to(MemoryPlan& plan) const override {
    exchange_.add_to(plan);
    plan.add("Newton-Schulz", newton_schulz_.bytes());
  }

 private:
  std::size_t index_of(const Bucket& bucket) const {
    return static_cast<std::size_t>(&bucket - storage_->parameters().buckets().data());
  }

  /// Calls f(slice, elements of the part, their place in the exchange).
  template <class F>
  void on_slices(const UpdatePart& part, const F& f) const {
    for (const MatrixExchange::Slice& slice : exchange_.slices(index_of(*part.bucket))) {
      const Range mine = overlap(slice.in_bucket, part.in_bucket);
      if (mine.count == 0) continue;
      f(slice, Range{mine.first - part.in_bucket.first, mine.count},
        slice.elements.slice(mine.first - slice.in_bucket.first, mine.count));
    }
  }

  /// The ranges of a bucket that AdamW updates, neighbours together.
  std::vector<Range> others(const Bucket& bucket) const {
    std::vector<Range> ranges;
    bool joins = false;
    for (const Parameter* p : bucket.parameters) {
      const bool other = bucket.trainable && !is_matrix(muon_, *p);
      if (other && !joins) ranges.push_back({p->offset, 0});
      if (other) ranges.back().count = p->offset + p->local_count() - ranges.back().first;
      joins = other;
    }
    return ranges;
  }

  ParameterStorage* storage_;
  const UpdateSettings* settings_;
  MuonSettings muon_;
  UpdateSettings of_others_;
  AdamWUpdater adamw_;
  NewtonSchulz newton_schulz_;
  PhiloxKey rounding_;
  MatrixExchange exchange_;
  std::vector<Round> rounds_;
  std::vector<std::vector<Range>> others_;       // by bucket
  std::vector<std::vector<ElementSpan>> spans_;  // by bucket
  Communicator* tensor_ = nullptr;
};

KeyTable<MuonSettings> make_keys() {
  using Part = MuonSettings;
  KeyTable<Part> table;
  auto muon = table.section<Part>("optimizer.muon", [](Part& all) -> Part& { return all; });
  muon.add("momentum", &Part::momentum, "",
           "Part of the earlier gradients that the momentum of a matrix keeps: m = momentum * m + "
           "(1 - momentum) * gradient.")
      .at_least(0)
      .below(1);
  muon.add("nesterov", &Part::nesterov, "",
           "The orthogonalised matrix is (1 - momentum) * gradient + momentum * m instead of m.");
  muon.add("coefficients", &Part::coefficients, "",
           "Coefficients of the Newton-Schulz iteration x = a x + (b s + c s s) x with s = x x^T, "
           "a triple for each of its steps. simple: Jordan 2024, the same triple five times.")
      .one_of({"simple", "quintic", "polar_express", "polar_express_nanochat", "deepseekv4"});
  muon.add("ns_steps", &Part::steps, "steps",
           "Steps of the Newton-Schulz iteration. Beyond the triples of optimizer.muon."
           "coefficients, the last one is repeated. 0: as many as there are triples.")
      .at_least(0)
      .at_most(20);
  muon.add("scale", &Part::scale, "",
           "Factor on the learning rate of a matrix [A, B]. original: sqrt(max(1, A / B)). "
           "match_rms_adamw: 0.2 sqrt(max(A, B)), with which the learning rate and weight decay of "
           "AdamW may stay. spectral_unclamped: sqrt(A / B).")
      .one_of({"original", "match_rms_adamw", "spectral_unclamped"});
  muon.add("adapters", &Part::adapters, "",
           "The factors of low-rank adapters are updated as matrices, not by AdamW.")
      .when_resumed(OnResume::fixed);
  muon.add("adamw_learning_rate", &Part::adamw_learning_rate, "",
           "Peak learning rate of the parameters that are no hidden matrices: embeddings, heads, "
           "norms and biases, which AdamW updates. It follows the same schedule. 0: "
           "optimizer.learning_rate.")
      .at_least(0);
  muon.add("adamw_weight_decay", &Part::adamw_weight_decay, "",
           "Weight decay of the embeddings and heads that AdamW updates. -1: "
           "optimizer.weight_decay.")
      .checked("-1, or at least 0", [](const KeyValue& value) -> std::string {
        const double decay = std::get<double>(value);
        return decay == -1 || decay >= 0 ? "" : "-1, or at least 0";
      });
  return table;
}

class MuonRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "muon"; }
  std::string_view about() const override {
    return "muon: Jordan et al. 2024, momentum whose hidden matrices are orthogonalised, and AdamW "
           "for embeddings, heads, norms and biases.";
  }
  Granularity granularity() const override { return Granularity::matrix; }
  std::span<const std::string_view> moments() const override {
    static constexpr std::array<std::string_view, 2> kNames{"m", "v"};
    return kNames;
  }
  bool keeps(const UpdateSettings& settings, std::size_t which, const Parameter& p) const override {
    return which == 0 || !is_matrix(settings.own_as<MuonSettings>(), p);
  }
  std::span<const std::string_view> keys() const override {
    static constexpr std::array<std::string_view, 3> kKeys{"beta1", "beta2", "moment_precision"};
    return kKeys;
  }
  const KeySet& own_keys() const override {
    static const KeyTable<MuonSettings> kTable = make_keys();
    return kTable;
  }
  std::unique_ptr<HeldSettings> settings() const override {
    return std::make_unique<SettingsOf<MuonSettings>>();
  }
  std::string_view needs_wide_masters() const override { return "weights of more than 16 bits"; }
  /// That of matrices: one state, and a direction that is written, and read again.
  Traffic traffic(const Precision& precision) const override { return plain_traffic(precision); }
  std::unique_ptr<Updater> make(const UpdateContext& context) const override {
    return std::make_unique<MuonUpdater>(context);
  }
};

}  // namespace

const UpdateRule& muon_rule() {
  static const MuonRule rule;
  return rule;
}

}  // namespace choir
