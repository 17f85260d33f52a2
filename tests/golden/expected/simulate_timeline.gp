set terminal svg size 1200,246 font 'DejaVu Sans,13' noenhanced background '#ffffff'
set encoding utf8
set border 3 lc rgb '#404040'
set tics nomirror out
unset mxtics
unset mytics
set grid xtics ytics lt 1 lw 0.6 lc rgb '#d8d8d8'
set errorbars 0.6
set key tmargin center horizontal Left reverse samplen 1 width 1 font ',9'
set title "opt-350m: 500 ms per iteration, bubble 25.0%"."\n"."2 pipelines of 2 stages on GH200-96 x4 + 1 pipeline of 1 stage on A100-40, micro-batch 2"
set xlabel "time (ms)" offset 0,0.5
set xrange [0:500]
set ylabel "" offset 0,0
set yrange [0.5:3.5]
set ytics ("pipeline 0 (x2), stage 0: GH200-96 x4, 2 layers" 3, "pipeline 0 (x2), stage 1: GH200-96 x4, 2 layers" 2, "pipeline 1, stage 0: A100-40, 4 layers" 1)
set label "0" at 49.8130841,3 center front font ',8' tc rgb '#ffffff'
set label "0" at 154.813084,2 center front font ',8' tc rgb '#ffffff'
set label "0" at 349.813084,3 center front font ',8' tc rgb '#000000'
set label "0" at 249.813084,2 center front font ',8' tc rgb '#000000'
$series0 << END
250 3 0 500 2.6 3.4
250 2 0 500 1.6 2.4
250 1 0 500 0.6 1.4
END
$series1 << END
49.8130841 3 0 99.6261682 2.6 3.4
154.813084 2 110 199.626168 1.6 2.4
5 1 0 10 0.6 1.4
END
$series2 << END
349.813084 3 300 399.626168 2.6 3.4
249.813084 2 200 299.626168 1.6 2.4
END
$series3 << END
104.813084 3 100 109.626168 2.6 3.4
END
$series5 << END
449.813084 3 400 499.626168 2.6 3.4
END
$series9 << END
300 1.7 250 350 1.6 1.8
END
plot $series0 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#ececec' title "idle", \
     $series1 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#0072B2' title "forward", \
     $series2 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#56B4E9' title "backward", \
     $series3 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#CC79A7' title "communication", \
     $series5 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#D55E00' title "update", \
     $series9 using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#009E73' title "gradient reduction"
