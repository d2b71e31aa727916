# Four panels of one sweep; see bench/plots.sh. Columns of `rows` (a block a layout) and `all`: 1 ranks or batch, 2 rate,
# 3 and 4 its p10 and p90, 5 efficiency, 6 to 11 phases in ms, 12 communication by difference, 13 to 16 exposed along
# tp, cp, dp, pp (%), 17 oversubscribed, 18 label.
if (terminal eq 'png') set terminal pngcairo size 1400,1000 font 'DejaVu Sans,12' background '#ffffff'
if (terminal eq 'svg') set terminal svg size 1400,1000 font 'DejaVu Sans,12' background '#ffffff'
set output out
rows = folder.'/rows'
all = folder.'/all'
n = words(layouts)
batch = sweep eq 'batch'
xname = batch ? 'global batch' : 'ranks'
# The colours of choir report (--c0 to --c7 of its page), also of the phases.
array colour[8] = ['#0072b2', '#d55e00', '#00906a', '#b4568f', '#c28a00', '#4ba3d9', '#7b6a52', '#6c757d']
# From the ninth layout on the colours come again, with other marks and dashes.
array mark[4] = [7, 5, 9, 13]
array dash[4] = [1, 4, 3, 5]
ink(k) = colour[1 + (k-1)%8]
turn(k) = 1 + ((k-1)/8)%4
set border 3 lc '#555555'
set tics nomirror textcolor '#333333'
set grid lc '#dddddd' lw 1
set style fill solid 0.9 noborder
set key textcolor '#333333'
# Layouts of the same ranks beside each other, however many there are.
apart = n > 8 ? 0.24/n : 0.03
beside(x, k) = x*(1 + apart*(k - 1 - (n - 1)/2.0))
many = n > 8
stats all using 1 nooutput name 'x_'
stats all using (column(2)/(batch ? 1 : column(1))) every ::0::0 nooutput name 'base_'
stats all using 2 nooutput name 'rate_'
stats all using 4 nooutput name 'high_'
stats all using (column(13)+column(14)+column(15)+column(16)) nooutput name 'sent_'
stats all using 17 nooutput name 'over_'
unit = speech ? 'x real time' : 'tokens/s'
title = sweep eq 'weak' ? 'Weak scaling: the global batch grows with the ranks' : \
        sweep eq 'strong' ? 'Strong scaling: one global batch' : 'Batch: the ranks stay, the batch grows'
note = over_max > 0 ? '   (*: oversubscribed, more threads than processors)' : ''
set multiplot layout 2,2 title title.note font ',16' margins 0.08,0.98,0.1,0.9 spacing 0.1,0.15

set title 'Throughput (p10 to p90)'
set xlabel xname
set ylabel unit
set logscale x 2
if (!batch) set logscale y 2
set format y rate_max < 5000 ? '%g' : '%.0s%c'
set xrange [x_min/1.15:x_max*1.15]
if (batch) { set yrange [0:high_max*(many ? 1.8 : 1.25)] } else { set yrange [*:*] }
set key top left
if (many) set key font ',9' samplen 2.5 spacing 0.9 maxrows 7
# Room for many names below the lines.
if (many && !batch) set key bottom right; set yrange [rate_min/8:*]
if (!batch) { plot for [k=1:n] rows index k-1 using (beside(column(1), k)):2:3:4 with yerrorlines lw 2 pt mark[turn(k)] dt dash[turn(k)] ps 1.1 lc rgb ink(k) title word(layouts, k), \
  base_min*x dt 2 lw 1.5 lc '#888888' title 'ideal' } \
else { plot for [k=1:n] rows index k-1 using (beside(column(1), k)):2:3:4 with yerrorlines lw 2 pt mark[turn(k)] dt dash[turn(k)] ps 1.1 lc rgb ink(k) title word(layouts, k), \
  rate_max dt 2 lw 1.5 lc '#888888' title 'best' }

set title batch ? 'Throughput, of the best' : 'Efficiency'
set ylabel '%'
unset logscale y
set format y '%g'
set yrange [0:*<130]
set key bottom left
if (many) unset key  # the same as in the panel before
plot for [k=1:n] rows index k-1 using (beside(column(1), k)):5 with linespoints lw 2 pt mark[turn(k)] dt dash[turn(k)] ps 1.1 lc rgb ink(k) title word(layouts, k), \
  100 dt 2 lw 1.5 lc '#888888' title 'ideal'

unset logscale x
set xrange [*:*]
set yrange [0:*]
set xlabel xname.', layout'
set style data histograms
set style histogram rowstacked
set boxwidth 0.75 relative
set xtics rotate by -30 scale 0 font ',10'
if (x_records > 24) set xtics rotate by -90 scale 0 font ',6'
set key on font ',12' spacing 1 maxrows auto
set key top left reverse Left samplen 1 width -2 horizontal
set title 'Phases of a step'
set ylabel 'ms'
set yrange [0:*]
set offsets 0,0,graph 0.22,0
phases = 'data forward backward comm optimizer other'
array shade[6] = [colour[5], colour[1], colour[6], colour[2], colour[3], colour[8]]
plot for [c=1:6] all using (column(5+c)):xtic(18) lc rgb shade[c] title word(phases, c)

set title 'Waits for other ranks, by axis'
set offsets 0,0,0,0
set yrange [0:135]
set ytics 0,20,100
if (sent_max == 0) set label 1 'one rank: nothing is sent' at graph 0.5,0.4 center textcolor '#888888'
set ylabel '% of the step'
axes = 'tp cp dp pp'
array tint[4] = [colour[4], colour[3], colour[1], colour[2]]
plot for [c=1:4] all using (column(12+c)):xtic(18) lc rgb tint[c] title word(axes, c), \
  all using 0:12 with points pt 9 ps 1.6 lc '#222222' title 'cost, against --no-comm'
unset multiplot
