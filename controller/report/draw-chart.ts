import { init } from "echarts";

export interface ChartLine {
  readonly name: string;
  readonly points: readonly (readonly [number, number])[];
  /** Markers only, no line between them. */
  readonly isScatter?: boolean;
}

export interface ChartSpec {
  readonly title: string;
  readonly xName: string;
  readonly yName: string;
  readonly lines: readonly ChartLine[];
  readonly yMin?: number;
  readonly yMax?: number;
  readonly isLogY?: boolean;
}

/** A line chart as SVG text of 720 x 320 px. Loads the chart library: import it when needed. */
export function drawChart(spec: ChartSpec): string {
  const chart = init(null, null, { renderer: "svg", ssr: true, width: 720, height: 320 });
  chart.setOption({
    animation: false,
    title: { text: spec.title, left: 12, top: 8, textStyle: { fontSize: 14 } },
    legend: { right: 12, top: 8, show: spec.lines.length > 1 },
    grid: { left: 64, right: 24, top: 48, bottom: 44 },
    xAxis: {
      type: "value",
      name: spec.xName,
      nameLocation: "middle",
      nameGap: 26,
      minInterval: 1,
    },
    yAxis: {
      type: spec.isLogY === true ? "log" : "value",
      name: spec.yName,
      ...(spec.yMin !== undefined && { min: spec.yMin }),
      ...(spec.yMax !== undefined && { max: spec.yMax }),
    },
    series: spec.lines.map((line) => ({
      type: line.isScatter === true ? "scatter" : "line",
      name: line.name,
      showSymbol: line.points.length < 40,
      symbolSize: line.isScatter === true ? 10 : 5,
      data: line.points.map(([x, y]) => [x, y]),
    })),
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  return svg;
}
