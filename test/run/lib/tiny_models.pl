#!/usr/bin/perl
# Models of transformers that are small enough for tests, with weights by a formula that anybody can repeat: the k-th
# tensor (from 0) of the names sorted as bytes has at i (flat, in the layout of the file) s = sin(0.37 i + k); norms are
# 1 + 0.1 s, all else 0.3 s.
#
#   tiny_models.pl make gpt2|smollm3|llama|mistral|qwen2|qwen3 FOLDER    config.json and model.safetensors; POSITIONS=N
#                                                cuts the table of gpt2; results for fewer positions are the same
#   tiny_models.pl take PREFIX FILE FOLDER           model.safetensors of the tensors of FILE that begin with PREFIX/
#   tiny_models.pl nll FILE.npy 3 17 5               the mean of -log p of each id after those before it
#   tiny_models.pl logits FILE.npy                   "SUM A B C D ...": sum of the absolute values, and the values
#   tiny_models.pl difference A.npy B.npy            the largest difference
#   tiny_models.pl ids FILE.npy 3 17 5               an array of int64
use strict; use warnings;
my ($vocab, $width, $layers, $ffn, $block) = (24, 16, 2, 24, $ENV{POSITIONS} // 32);

sub gpt2 {
  my %shape = ("transformer.wte.weight" => [$vocab, $width], "transformer.wpe.weight" => [$block, $width],
               "transformer.ln_f.weight" => [$width], "transformer.ln_f.bias" => [$width]);
  for my $n (0 .. $layers - 1) {
    my $h = "transformer.h.$n";
    my %of = ("attn.c_attn" => 3 * $width, "attn.c_proj" => $width, "mlp.c_fc" => 4 * $width);
    $shape{"$h.$_.weight"} = [$width, $of{$_}], $shape{"$h.$_.bias"} = [$of{$_}] for keys %of;
    $shape{"$h.mlp.c_proj.weight"} = [4 * $width, $width]; $shape{"$h.mlp.c_proj.bias"} = [$width];
    $shape{"$h.$_.weight"} = [$width], $shape{"$h.$_.bias"} = [$width] for ("ln_1", "ln_2");
  }
  return \%shape;
}
sub llama {
  my ($tied, $head, $normed, $biased) = @_;  # width of a head; norms of queries and keys; biases of q, k and v
  my %shape = ("model.embed_tokens.weight" => [$vocab, $width], "model.norm.weight" => [$width]);
  $shape{"lm_head.weight"} = [$vocab, $width] unless $tied;
  for my $n (0 .. $layers - 1) {
    my $l = "model.layers.$n";
    $shape{"$l.$_.weight"} = [$width] for ("input_layernorm", "post_attention_layernorm");
    $shape{"$l.self_attn.q_proj.weight"} = [4 * $head, $width]; $shape{"$l.self_attn.o_proj.weight"} = [$width, 4 * $head];
    $shape{"$l.self_attn.${_}_proj.weight"} = [2 * $head, $width] for ("k", "v");
    if ($biased) {
      $shape{"$l.self_attn.q_proj.bias"} = [4 * $head];
      $shape{"$l.self_attn.${_}_proj.bias"} = [2 * $head] for ("k", "v");
    }
    if ($normed) { $shape{"$l.self_attn.${_}_norm.weight"} = [$head] for ("q", "k") }
    $shape{"$l.mlp.${_}_proj.weight"} = [$ffn, $width] for ("gate", "up");
    $shape{"$l.mlp.down_proj.weight"} = [$width, $ffn];
  }
  return \%shape;
}
my %config = (
  gpt2 => qq({"model_type": "gpt2", "vocab_size": $vocab, "n_positions": $block, "n_embd": $width, "n_layer": $layers,
    "n_head": 4, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 0, "eos_token_id": 1}\n),
  smollm3 => qq({"model_type": "smollm3", "vocab_size": $vocab, "max_position_embeddings": $block, "hidden_size": $width,
    "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "rms_norm_eps": 1e-06, "no_rope_layers": [1, 1], "tie_word_embeddings": true,
    "rope_parameters": {"rope_theta": 2000000.0, "rope_type": "default"}, "sliding_window": null}\n),
  qwen3 => qq({"model_type": "qwen3", "vocab_size": $vocab, "max_position_embeddings": $block, "hidden_size": $width,
    "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "attention_bias": false,
    "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28, "tie_word_embeddings": true}\n),
  qwen2 => qq({"model_type": "qwen2", "vocab_size": $vocab, "max_position_embeddings": $block, "hidden_size": $width,
    "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28, "tie_word_embeddings": true}\n),
  mistral => qq({"model_type": "mistral", "vocab_size": $vocab, "max_position_embeddings": $block, "hidden_size": $width,
    "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": null,
    "tie_word_embeddings": false}\n),
  llama => qq({"model_type": "llama", "vocab_size": $vocab, "max_position_embeddings": $block, "hidden_size": $width,
    "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null,
    "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "torch_dtype": "float32"}\n));

sub make {
  my ($model, $folder) = @_;
  my %of = (llama => [0, 4], mistral => [0, 8], qwen2 => [1, 4, 0, 1], qwen3 => [1, 8, 1], smollm3 => [1, 4]);
  my $shape = $model eq "gpt2" ? gpt2() : llama(@{$of{$model}});
  my ($header, $data, $k) = ("", "", 0);
  for my $name (sort keys %$shape) {
    my $count = 1;
    $count *= $_ for @{$shape->{$name}};
    my ($base, $scale) = $name =~ /(ln_|norm).*weight$/ ? (1, 0.1) : (0, 0.3);
    my $begin = length $data;
    $data .= pack "f<*", map { $base + $scale * sin(0.37 * $_ + $k) } 0 .. $count - 1;
    $header .= ($header eq "" ? "{" : ",") . sprintf(qq("%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}), $name,
                                                     join(",", @{$shape->{$name}}), $begin, length $data);
    ++$k;
  }
  $header .= "}";
  $header .= " " x (-length($header) % 8);
  mkdir $folder;
  put("$folder/model.safetensors", pack("Q<", length $header) . $header . $data);
  put("$folder/config.json", $config{$model});
}
sub put {
  my ($file, $bytes) = @_;
  open my $out, ">:raw", $file or die "$file: $!";
  print $out $bytes; close $out or die "$file: $!";
}
sub take {
  my ($prefix, $file, $folder) = @_;
  open my $in, "<:raw", $file or die "$file: $!";
  local $/; my $bytes = <$in>;
  my $length = unpack "Q<", $bytes;
  my ($header, $data) = ("", "");
  my $list = substr $bytes, 8, $length;
  while ($list =~ /"\Q$prefix\E\/([^"]+)":(\{"dtype":"F32","shape":\[[0-9,]+\],)"data_offsets":\[(\d+),(\d+)\]/g) {
    my $begin = length $data;
    $data .= substr $bytes, 8 + $length + $3, $4 - $3;
    $header .= ($header eq "" ? "{" : ",") . sprintf(qq("%s":%s"data_offsets":[%d,%d]}), $1, $2, $begin, length $data);
  }
  $header .= "}";
  $header .= " " x (-length($header) % 8);
  mkdir $folder;
  put("$folder/model.safetensors", pack("Q<", length $header) . $header . $data);
}
sub npy {
  my ($file) = @_;
  open my $in, "<:raw", $file or die "$file: $!";
  local $/; my $bytes = <$in>;
  my $header = unpack "v", substr $bytes, 8, 2;
  my $wide = substr($bytes, 10, $header) =~ /<f8/;
  return unpack $wide ? "d<*" : "f<*", substr $bytes, 10 + $header;
}
my $what = shift;
if ($what eq "make") { make(@ARGV) }
elsif ($what eq "take") { take(@ARGV) }
elsif ($what eq "logits") {
  my @values = npy($ARGV[0]); my $sum = 0;
  $sum += abs $_ for @values;
  printf "%.8f", $sum; printf " %.8f", $_ for @values; print "\n";
} elsif ($what eq "difference") {
  my @a = npy($ARGV[0]); my @b = npy($ARGV[1]); my $largest = @a == @b ? 0 : 1e300;
  for my $i (0 .. $#a) { my $d = abs($a[$i] - $b[$i]); $largest = $d unless $d <= $largest }
  printf "%.3e\n", $largest;
} elsif ($what eq "nll") {
  my @values = npy(shift); my $symbols = @values / @ARGV; my $sum = 0;
  for my $i (1 .. $#ARGV) {
    my ($at, $top, $z) = (($i - 1) * $symbols, -1e300, 0);
    for (@values[$at .. $at + $symbols - 1]) { $top = $_ if $_ > $top }
    $z += exp($_ - $top) for @values[$at .. $at + $symbols - 1];
    $sum += $top + log($z) - $values[$at + $ARGV[$i]];
  }
  printf "%.6f\n", $sum / $#ARGV;
} elsif ($what eq "ids") {
  my $file = shift; my $dict = sprintf "{'descr': '<i8', 'fortran_order': False, 'shape': (%d,), }", scalar @ARGV;
  $dict .= " " x (-(length($dict) + 11) % 64) . "\n";
  put($file, "\x93NUMPY\x01\x00" . pack("v", length $dict) . $dict . pack "q<*", @ARGV);
}
